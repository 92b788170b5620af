"""format="dcp" of tensors that are made of others: stock torch finds them under their own names."""

from __future__ import annotations

import http
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import programs
import pytest
import torch
import torch.distributed.checkpoint as stock
import whole_jobs as jobs
from ranks import run_ranks
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.testing._internal.two_tensor import TwoTensor

import varve
import varve.torch
from varve.torch import _by_torch, _whole
from varve.torch._wrapped import take_apart

pytestmark = pytest.mark.filterwarnings("ignore")

pytest.importorskip("torchao", reason="torchao is not installed")


def quantized_weight(config: str) -> Any:
    from torchao import quantization

    layer = torch.nn.Linear(128, 64, bias=False)
    quantization.quantize_(layer, getattr(quantization, config)())
    return layer.weight


def optimizer_state(module: str, name: str) -> Any:
    import torchao.optim

    made = getattr(getattr(torchao.optim, module), name).zeros((64, 128))
    made.codes.view(torch.uint8).random_(0, 100)
    made.scale.uniform_()
    return made


def rows() -> list[torch.Tensor]:
    return [torch.randn(2, 3), torch.randn(5, 3)]


def sparse() -> torch.Tensor:
    return torch.randn(5, 6).relu()


def channels() -> torch.Tensor:
    scales, zeros = torch.rand(3) + 0.1, torch.zeros(3, dtype=torch.long)
    return torch.quantize_per_channel(torch.randn(3, 4), scales, zeros, 0, torch.quint8)


KINDS: dict[str, Callable[[], Any]] = {
    "Int8Tensor": lambda: quantized_weight("Int8WeightOnlyConfig"),
    "Float8Tensor": lambda: quantized_weight("Float8WeightOnlyConfig"),
    "OptimState8bit": lambda: optimizer_state("subclass_8bit", "OptimState8bit"),
    "OptimState4bit": lambda: optimizer_state("subclass_4bit", "OptimState4bit"),
    "OptimStateFp8": lambda: optimizer_state("subclass_fp8", "OptimStateFp8"),
    "TwoTensor": lambda: TwoTensor(torch.randn(80, 40), torch.randn(80, 40)),
    "Parameter": lambda: torch.nn.Parameter(jobs.two(3)),
    "wrapped twice": lambda: TwoTensor(jobs.two(1), TwoTensor(jobs.two(2), jobs.two(3))),
    "strided inner": lambda: TwoTensor(torch.randn(4, 8).t(), torch.randn(4, 8).t()),
    "empty": lambda: TwoTensor(torch.empty(0, 4), torch.empty(0, 4)),
    "coo": lambda: sparse().to_sparse(),
    "csr": lambda: sparse().to_sparse_csr(),
    "bsc": lambda: sparse()[:4].to_sparse_bsc((2, 3)),
    "jagged": lambda: torch.nested.nested_tensor(rows(), layout=torch.jagged),
    "nested": lambda: torch.nested.nested_tensor(rows()),
    "qint8": lambda: torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 3, torch.qint8),
    "transposed": lambda: torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 3, torch.qint8).t(),
    "qint32": lambda: torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 3, torch.qint32),
    "per channel": channels,
    "uint4": lambda: torch.randint(0, 255, (4, 3), dtype=torch.uint8).view(torch.uint4),
}


def parts(tensor: Any) -> Any:
    """Returns all that makes up a tensor, as values that can be compared."""
    apart = take_apart("", tensor)
    if apart is None:
        return tensor.dtype, tuple(tensor.shape), tensor.tolist()
    inner = {name: parts(each) for name, each in apart.inner.items()}
    return apart.name, type(tensor.detach()), repr(apart.attributes), inner


def opened_by_torch(path: Path, fqn: str) -> Any:
    """Returns an entry as stock torch's own load gives it; nothing of the tensor is known before."""
    state = {"m": {fqn: None}}
    stock.load(state, checkpoint_id=str(path))
    return state["m"][fqn]


@pytest.mark.parametrize("kind", KINDS)
def test_stock_torch_finds_it_and_so_do_we(kind: str, tmp_path: Path) -> None:
    path, wanted = tmp_path / "c", KINDS[kind]()
    state = {"m": {"w": wanted, "p": torch.ones(4)}, "step": 3}
    varve.torch.save(state, path, format="dcp")
    assert set(stock.FileSystemReader(path).read_metadata().state_dict_metadata) == {
        "m.w",
        "m.p",
        "step",
    }
    assert parts(opened_by_torch(path, "w")) == parts(wanted)
    assert varve.torch.verify(path) == []
    assert parts(varve.torch.read(path)["m"]["w"]) == parts(wanted)
    state = {"m": {"w": KINDS[kind](), "p": torch.zeros(4)}, "step": 0}
    varve.torch.load(state, path)
    assert parts(state["m"]["w"]) == parts(wanted)
    assert state["m"]["p"].tolist() == [1.0] * 4 and state["step"] == 3


def test_the_inner_tensors_are_stored_once(tmp_path: Path) -> None:
    wanted = TwoTensor(torch.randn(1000, 100), torch.randn(1000, 100))
    state = {"v": wanted, "w": wanted, "plain": wanted.a}
    varve.torch.save(state, tmp_path / "c", format="dcp")
    (file,) = (tmp_path / "c").glob("*.distcp")
    # `plain` is in no archive of its own for torch where it is in that of `v`: it is stored twice.
    assert file.stat().st_size < 3 * 400_000 + 40_000
    back: dict[str, Any] = {"v": None, "w": None, "plain": torch.zeros(1000, 100)}
    stock.load(back, checkpoint_id=str(tmp_path / "c"))
    assert parts(back["v"]) == parts(back["w"]) == parts(wanted)
    assert torch.equal(back["plain"], wanted.a)
    ours = varve.torch.read(tmp_path / "c")
    assert parts(ours["v"]) == parts(ours["w"]) == parts(wanted)
    assert torch.equal(ours["plain"], wanted.a)


def test_an_asynchronous_save_stores_the_same(tmp_path: Path) -> None:
    state = {"m": {name: make() for name, make in KINDS.items()}}
    varve.torch.save(state, tmp_path / "a", format="dcp")
    varve.torch.async_save(state, tmp_path / "b", format="dcp").result()
    (one,), (other,) = ((tmp_path / name).glob("*.distcp") for name in "ab")
    assert one.read_bytes() == other.read_bytes()
    for name in KINDS:
        assert parts(opened_by_torch(tmp_path / "b", name)) == parts(state["m"][name])


def test_torchs_own_converter_gives_a_model_its_weights(tmp_path: Path) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
    quantize_(model, Int8WeightOnlyConfig())
    varve.torch.save(model, tmp_path / "c", format="dcp")
    dcp_to_torch_save(tmp_path / "c", tmp_path / "m.pt")
    other = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
    other.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=False), assign=True)
    x = torch.randn(2, 64)
    assert torch.equal(model(x), other(x))
    assert type(other[0].weight.detach()) is type(model[0].weight.detach())


def test_the_conversion_has_the_inner_tensors(tmp_path: Path) -> None:
    state = {"m": {"w": jobs.two(3)}}
    varve.torch.save(state, tmp_path / "c", format="dcp")
    varve.convert(tmp_path / "c", tmp_path / "v", to="varve")
    assert parts(varve.torch.read(tmp_path / "v")["m"]["w"]) == parts(jobs.two(3))
    varve.convert(tmp_path / "v", tmp_path / "d", to="dcp")
    assert parts(varve.torch.read(tmp_path / "d")["m"]["w"]) == parts(jobs.two(3))
    inner = {"m.w.a": torch.zeros(8, 64)}
    stock.load(inner, checkpoint_id=str(tmp_path / "d"))
    assert torch.equal(inner["m.w.a"], jobs.two(3).a)
    assert set(varve.torch.open(tmp_path / "c").tensors) == {"m.w.a", "m.w.b"}


def test_a_program_without_the_class_gets_the_inner_tensors(tmp_path: Path) -> None:
    """The pickle is for torch alone: it is neither run nor read."""
    varve.torch.save({"w": KINDS["Int8Tensor"]()}, tmp_path / "c", format="dcp")
    script = (
        "import sys, pickle, warnings, varve.torch; warnings.simplefilter('ignore')\n"
        "def refuse(*a, **k): raise AssertionError('unpickled')\n"
        "import torch; torch.load = pickle.loads = pickle.load = refuse\n"
        f"w = varve.torch.read({str(tmp_path / 'c')!r})['w']\n"
        "print(type(w).__name__, sorted(w), any(m.startswith('torchao') for m in sys.modules))"
    )
    assert programs.output(script).strip() == "dict ['qdata', 'scale', 'zero_point'] False"


def test_without_a_pickle_torch_finds_the_inner_tensors(tmp_path: Path) -> None:
    """A class that is made in a function has no name that torch could find it by."""

    class Local(TwoTensor):
        pass

    varve.register_classes(Local)
    wanted = Local(torch.ones(4, 4), torch.zeros(4, 4))
    varve.torch.save({"m": {"w": wanted}}, tmp_path / "c", format="dcp")
    inner = {"m.w.a": torch.zeros(4, 4), "m.w.b": torch.ones(4, 4)}
    stock.load(inner, checkpoint_id=str(tmp_path / "c"))
    assert inner["m.w.a"].eq(1).all() and inner["m.w.b"].eq(0).all()
    ours = varve.torch.read(tmp_path / "c")["m"]["w"]
    assert torch.equal(ours.a, wanted.a) and torch.equal(ours.b, wanted.b)


@pytest.mark.parametrize("kind", ["Int8Tensor", "OptimState8bit", "wrapped twice", "coo", "jagged"])
def test_checkpoints_of_before_are_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_whole, "pickled", lambda *_: None)
    wanted = KINDS[kind]()
    varve.torch.save({"m": {"w": wanted}}, tmp_path / "c", format="dcp")
    assert "m.w" not in stock.FileSystemReader(tmp_path / "c").read_metadata().state_dict_metadata
    state = {"m": {"w": KINDS[kind]()}}
    varve.torch.load(state, tmp_path / "c")
    assert parts(state["m"]["w"]) == parts(wanted)


def test_a_flipped_bit_names_the_inner_tensor(tmp_path: Path) -> None:
    varve.torch.save({"m": {"w": jobs.two(3)}}, tmp_path / "c", format="dcp")
    (file,) = (tmp_path / "c").glob("*.distcp")
    content = bytearray(file.read_bytes())
    content[content.find(jobs.two(3).b.numpy().tobytes()) + 5] ^= 1
    file.write_bytes(content)
    (damage,) = varve.torch.verify(tmp_path / "c")
    assert "m.w.b" in str(damage)
    with pytest.raises(varve.CorruptCheckpointError):
        varve.torch.load({"m": {"w": jobs.two(0)}}, tmp_path / "c")


def test_ranks_share_the_writing_of_replicas(tmp_path: Path) -> None:
    path = tmp_path / "c"
    run_ranks(2, jobs.save, str(path))
    wanted = jobs.replicas()
    names = [*wanted, "own", "differs"]
    state = dict.fromkeys(names)
    stock.load(state, checkpoint_id=str(path))
    assert all(parts(state[name]) == parts(wanted[name]) for name in wanted)
    assert parts(state["own"]) == parts(jobs.two(9))
    assert parts(state["differs"]) == parts(jobs.two(100))
    known = stock.FileSystemReader(path).read_metadata().state_dict_metadata
    assert sorted(known) == sorted([*names, "rows.a", "rows.b"])
    sizes = [file.stat().st_size for file in path.glob("*.distcp")]
    assert max(sizes) < 2 * 2 * 256 * 64 * 4 + 40_000  # Two of the four large ones each.
    assert all(run_ranks(1, jobs.load, str(path)))
    assert varve.torch.verify(path) == []
    read = varve.torch.read(path)["rows"]
    assert read.a[:, 0].tolist() == [0] * 8 + [1] * 8


class Changed:
    """Pickles as a member of an enum that is given another value."""

    def __init__(self, by: Any, *arguments: Any) -> None:
        self.reduced = by, arguments, {"_value_": 7}

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize("by", [getattr, http.HTTPStatus], ids=["by name", "by value"])
def test_a_file_changes_no_member_of_an_enum(by: Any) -> None:
    arguments = (http.HTTPStatus, "OK") if by is getattr else (200,)
    archive = io.BytesIO()
    torch.save(Changed(by, *arguments), archive)
    archive.seek(0)
    with pytest.raises(Exception, match=r"BUILD|build|state"):
        _by_torch._made("w", archive)
    assert http.HTTPStatus.OK.value == 200


def test_an_enum_that_the_program_marked_safe_gives_its_members_and_stays_marked() -> None:
    """As torchao marks its own: the unpickler of torch would have the class itself, whose objects can be changed."""
    archive = io.BytesIO()
    torch.save({"b": http.HTTPStatus.OK}, archive)
    changed = io.BytesIO()
    torch.save(Changed(http.HTTPStatus, 200), changed)
    marked = torch.serialization.get_safe_globals()
    with torch.serialization.safe_globals([http.HTTPStatus, Changed]):
        for each in (archive, changed):
            each.seek(0)
        assert _by_torch._made("w", archive) is None  # No tensor, and no error.
        with pytest.raises(Exception, match=r"BUILD|build|state"):
            _by_torch._made("w", changed)
        assert {http.HTTPStatus, Changed} <= set(torch.serialization.get_safe_globals())
    assert set(torch.serialization.get_safe_globals()) == set(marked)
    assert http.HTTPStatus.OK.value == 200
