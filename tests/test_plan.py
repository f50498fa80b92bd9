"""From heads to slices of tensors."""

from __future__ import annotations

import pytest

from editor.plan import compile_edits
from editor.records import Head, ModelSpec, TensorEdit
from fixtures import make_spec


def spec_with(axis: int, head_dim: int = 64) -> ModelSpec:
    spec = make_spec(4, 6)
    layers = [
        at.model_copy(update={"axis": axis, "head_dim": head_dim, "file": f"{at.layer % 2}.st"})
        for at in spec.layers
    ]
    return spec.model_copy(update={"layers": tuple(layers)})


@pytest.mark.parametrize("axis", [0, 1])
def test_a_head_is_its_slice_along_the_axis_of_its_layer(axis: int) -> None:
    (edit,) = compile_edits(spec_with(axis), [Head(3, 5)])
    assert edit == TensorEdit(
        tensor="model.layers.3.self_attn.o_proj.weight",
        file="1.st",
        axis=axis,  # type: ignore[arg-type]
        start=320,
        stop=384,
        width=384,
    )


def test_edits_are_in_the_order_of_the_model_whatever_the_order_of_the_heads() -> None:
    heads = [Head(3, 0), Head(0, 5), Head(2, 4), Head(2, 1)]
    edits = compile_edits(spec_with(1), heads)
    assert [(edit.tensor.split(".")[2], edit.start // 64) for edit in edits] == [
        ("0", 5),
        ("2", 1),
        ("2", 4),
        ("3", 0),
    ]
    assert compile_edits(spec_with(1), heads[::-1]) == edits


def test_a_head_given_twice_is_edited_once() -> None:
    assert len(compile_edits(spec_with(1), [Head(1, 1), Head(1, 1)])) == 1


def test_all_heads_of_a_layer_tile_its_tensor() -> None:
    edits = compile_edits(spec_with(0, head_dim=10), [Head(1, head) for head in range(6)])
    assert [(edit.start, edit.stop) for edit in edits] == [(n, n + 10) for n in range(0, 60, 10)]


def test_no_heads_are_no_edits() -> None:
    assert compile_edits(spec_with(1), []) == ()


@pytest.mark.parametrize("head", [Head(0, 6), Head(4, 0), Head(0, -1), Head(-1, 0)])
def test_an_unknown_head_is_a_key_error(head: Head) -> None:
    with pytest.raises(KeyError):
        compile_edits(spec_with(1), [Head(0, 0), head])
