"""What has to be known of a model family to find its attention heads."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Flag(NamedTuple):
    """A value of config.json without which a family's heads are not clean, or not causal."""

    field: str
    allowed: tuple[object, ...]
    default: object
    """What transformers takes where the field is missing."""
    reason: str
    """Why another value is refused."""


class Family(NamedTuple):
    """How one architecture names its parts."""

    module: str
    """Dotted path of the output projection in the loaded model; `{}` stands for the layer.  The
    tensor adds `.weight`."""
    bare: bool = True
    """Whether files may leave out the first component, as those of a model without head do."""
    stored: tuple[str, ...] = ()
    """Other names that files give the module: transformers renames them when it loads."""
    parts: tuple[str, ...] = ()
    """What `{part}` stands for in the names, where the attentions are more than the layers.  They
    are counted through: attention 2n and 2n + 1 of layer n, say."""
    stacked: bool = False
    """Whether all of the first part's attentions come before those of the second."""
    sibling: str = ""
    """A tensor that stands beside the projection in layers of softmax attention only.  Needed where
    linear attention has a projection of the same name."""
    axis: Literal[0, 1] = 1
    """Axis of the weight along which the heads lie: 1 of a Linear, 0 of a Conv1D."""
    text: bool = False
    """Whether the language model's numbers are in `text_config`: the model also sees or hears."""
    defaults: tuple[tuple[str, int], ...] = ()
    """Numbers that `text_config` may leave out, as transformers completes them."""
    n_heads: tuple[str, ...] = ("num_attention_heads",)
    heads_by_layer: str | None = None
    """A list with one number of heads a layer; it overrides `n_heads` where it is there."""
    sliding_heads: str | None = None
    """The number of heads in layers that `layer_types` calls sliding, where it is another one."""
    n_layers: tuple[str, ...] = ("num_hidden_layers",)
    n_layers_else: str | None = None
    """The number of layers where none of `n_layers` is there: an older field's name."""
    hidden_size: tuple[str, ...] = ("hidden_size",)
    head_dim: tuple[str, ...] = ("head_dim",)
    """Fields that may state a head's width; it must be one of those that are there."""
    n_kv_heads: str | None = "num_key_value_heads"
    """None where every head has its own keys and values, or `multi_query` alone decides."""
    kv_required: bool = False
    """Whether the family's default for a missing `n_kv_heads` is another number than `n_heads`."""
    multi_query: bool | None = None
    """The default of the `multi_query` flag, or None where there is no such flag."""
    output: tuple[str, ...] = ("lm_head.weight",)
    """Names that the output embedding's tensor may have."""
    tied: bool = False
    """The default of `tie_word_embeddings`."""
    flags: tuple[Flag, ...] = ()
    shared: str | None = None
    """Field with the number of attention blocks that take turns in the layers called hybrid; each
    is saved once, at the first of its layers.  Where there is no such field there is one."""
    listed: bool = False
    """Whether the list of layer types, where it is there, decides how many layers there are."""
    note: str = ""
    """What a reader should know of every model of the family."""

    def names(self) -> tuple[str, ...]:
        """All names by which files may call the module."""
        bare = (self.module.partition(".")[2],) if self.bare else ()
        return (self.module, *bare, *self.stored)
