"""Checkpoints read from web servers: one that behaves, and one that does not."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import command
from ranks import run_ranks
from s3_jobs import load_ranks, save_ranks
from safetensors.torch import save_file
from same import same
from web_server import Handler, Web, served

import varve
import varve.torch
from varve.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    InvalidArgumentError,
    PreconditionError,
)

GOLDEN = Path(__file__).parents[2] / "tests" / "golden"
MIB = 1 << 20


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    """A server of the files in `tmp_path`/www."""
    (tmp_path / "www").mkdir()
    with served(tmp_path / "www") as server:
        yield server


def state_of(seed: int = 0, rows: int = 5000) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model": {"w": torch.randn((rows, 100), generator=generator), "b": torch.ones(3)},
        "step": seed,
    }


def saved(web: Web, name: str = "run/step-1", **options: Any) -> str:
    """Saves the state below the server's root and returns its URL."""
    varve.torch.save(state_of(), web.root / name, **options)
    return f"{web.url}/{name}"


def run(*arguments: str, code: int = 0, **environment: str) -> str:
    """The output of the command line, with short times for failures."""
    times = {"VARVE_HTTP_RETRY_TIMEOUT": "1", "VARVE_HTTP_STALL_TIMEOUT": "1"}
    return command(*arguments, code=code, **times, **environment)


def damaged(web: Web, name: str) -> None:
    """Flips one byte in the middle of a file."""
    file = web.root / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


# ---- every format ----


@pytest.mark.parametrize("format", ["varve", "dcp", "hf"])
def test_a_checkpoint_loads_as_from_a_disk(web: Web, format: str) -> None:
    tensors: dict[str, Any] = {"w": torch.randn(300, 40), "b": torch.ones(3, dtype=torch.int8)}
    varve.torch.save(tensors, web.root / "ck", format=format)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    varve.torch.load(loaded, web.url + "/ck")
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert same(varve.torch.read(web.url + "/ck/"), varve.torch.read(web.root / "ck"))
    assert "clean" in run("verify", web.url + "/ck")


def test_values_and_side_files_come_too(web: Web) -> None:
    url = saved(web, files={"notes/a b%.txt": b"text"})
    assert dict(varve.files(url)) == {"notes/a b%.txt": b"text"}
    assert same(varve.torch.read(url), state_of())


def test_ranks_load_their_shards(web: Web) -> None:
    run_ranks(2, save_ranks, str(web.root / "ck"), 5, False)
    assert run_ranks(3, load_ranks, web.url + "/ck") == [(5, True)] * 3


def test_one_file_is_opened_by_its_own_url(web: Web) -> None:
    tensors = {"w": torch.randn(50, 40)}
    save_file(tensors, web.root / "m.safetensors")
    torch.save(tensors, web.root / "m.pt")
    for name in ("m.safetensors", "m.pt"):
        assert same(varve.torch.read(f"{web.url}/{name}"), tensors)


def test_the_dcp_checkpoint_in_one_of_olmo_is_opened_by_its_own_url(web: Web) -> None:
    source = GOLDEN / "olmo" / "torch-new-world2" / "model_and_optim"
    shutil.copytree(source, web.root / "olmo")
    assert same(varve.torch.read(web.url + "/olmo"), varve.torch.read(source))


def test_a_hugging_face_folder_of_one_file_is_found(web: Web) -> None:
    tensors = {"w": torch.randn(50, 40)}
    (web.root / "hf").mkdir()
    save_file(tensors, web.root / "hf" / "model.safetensors")
    assert same(varve.torch.read(web.url + "/hf"), tensors)


def test_parts_of_hfai_are_found_by_their_numbers(web: Web) -> None:
    source = GOLDEN / "hfai" / "world4"
    shutil.copytree(source, web.root / "world4")
    assert same(varve.torch.read(web.url + "/world4"), varve.torch.read(source))


def test_an_overwritten_checkpoint_of_an_object_store_is_opened_by_its_record(web: Web) -> None:
    saved(web)
    (web.root / "run/step-1/varve.json").rename(web.root / "run/step-1/varve-7.json")
    with pytest.raises(CheckpointNotFoundError, match=r"varve-2\.json"):
        varve.torch.read(web.url + "/run/step-1")
    assert same(varve.torch.read(web.url + "/run/step-1/varve-7.json"), state_of())
    assert "clean" in run("verify", web.url + "/run/step-1/varve-7.json")


def test_it_is_converted_compared_inspected_and_listed(web: Web, tmp_path: Path) -> None:
    url = saved(web)
    run("convert", url, str(tmp_path / "copy"), "--to", "varve")
    assert same(varve.torch.read(tmp_path / "copy"), state_of())
    assert "different: 0" in run("diff", url, str(tmp_path / "copy"))
    assert "model.w" in run("inspect", url)
    assert "step-1" in run("ls", url)


def test_a_part_of_a_tensor_costs_little_more_than_its_bytes(web: Web) -> None:
    varve.torch.save({"w": torch.zeros(64 * MIB // 4)}, web.root / "w")
    part = varve.torch.open(web.url + "/w")["w"][: MIB // 4]
    assert part.shape == (MIB // 4,)
    assert web.sent < 4 * MIB


# ---- what a web server does not do ----


def test_a_run_cannot_be_listed(web: Web) -> None:
    saved(web)
    assert "without a list" in run("ls", web.url + "/run", code=2)
    assert "without a list" in run("latest", web.url + "/run", code=1)


def test_ranks_that_saved_apart_need_a_list(web: Web) -> None:
    url = saved(web, coordinate=False)
    with pytest.raises(CheckpointNotFoundError, match="saved apart"):
        varve.torch.read(url)


def test_writes_are_refused_before_any_request(web: Web) -> None:
    url = web.url + "/new"
    with pytest.raises(InvalidArgumentError, match="only read"):
        varve.torch.save(state_of(), url)
    with pytest.raises(InvalidArgumentError, match="only read"):
        varve.torch.async_save(state_of(), url).result()
    for arguments in (["rm", url], ["gc", url], ["repair", url]):
        assert "read" in command(*arguments, code=2)
    assert web.requests == []


def test_names_that_hold_a_secret_are_refused_without_showing_it(web: Web) -> None:
    host = web.url.removeprefix("http://")
    for url in (f"http://me:hunter2@{host}/ck", f"{web.url}/ck?key=hunter2"):
        with pytest.raises(InvalidArgumentError) as caught:
            varve.torch.read(url)
        assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidArgumentError, match="pathlib"):
        varve.torch.read(Path(web.url + "/ck"))


def test_nothing_there_is_said_with_what_was_looked_for(web: Web) -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"varve\.json, \.metadata"):
        varve.torch.read(web.url + "/none")


# ---- a server that behaves badly ----


def test_a_server_without_ranges_serves_small_files(web: Web) -> None:
    url = saved(web)
    web.fault = lambda handler: handler.serve_file(ranges=False) is None
    assert same(varve.torch.read(url), state_of())


def test_a_server_without_ranges_is_named_for_large_files(web: Web) -> None:
    varve.torch.save({"w": torch.zeros(20 * MIB // 4)}, web.root / "large")
    web.fault = lambda handler: handler.serve_file(ranges=False) is None
    with pytest.raises(PreconditionError, match=r"ignores Range.*download"):
        varve.torch.read(web.url + "/large")


def test_a_file_that_is_replaced_meanwhile_is_an_error(web: Web) -> None:
    url = saved(web)

    def replace(handler: Handler) -> bool:
        if handler.command == "GET" and "/data-" in handler.path:
            handler.serve_file(etag='"another"')
            return True
        return False

    web.fault = replace
    with pytest.raises(PreconditionError, match=r"replaced while it was read.*another"):
        varve.torch.read(url)


def test_damage_is_found_by_the_checksums(web: Web) -> None:
    url = saved(web)
    damaged(web, "run/step-1/data-00000-of-00001.safetensors")
    with pytest.raises(CorruptCheckpointError, match="checksum"):
        varve.torch.read(url)


def test_a_body_that_is_cut_short_is_asked_for_again(web: Web) -> None:
    url = saved(web)
    cut: list[str] = []

    def once(handler: Handler) -> bool:
        if handler.command == "GET" and handler.path not in cut:
            cut.append(handler.path)
            handler.serve_file(cut=10)
            return True
        return False

    web.fault = once
    assert same(varve.torch.read(url), state_of())
    assert len(cut) > 2


def test_a_body_that_is_always_cut_short_is_given_up(web: Web) -> None:
    url = saved(web)
    web.fault = lambda handler: handler.command == "GET" and handler.serve_file(cut=10) is None
    output = run("verify", url, code=2)
    assert "given up after" in output and "varve.json" in output


def test_a_host_that_is_misspelt_is_waited_for_once() -> None:
    output = run("verify", "https://nohost.invalid/step-1", code=2)
    assert "given up after" in output and "varve.json" not in output


def test_a_server_that_stands_still_is_given_up(web: Web) -> None:
    url = saved(web)

    def stall(handler: Handler) -> bool:
        time.sleep(8)
        return False

    web.fault = stall
    begun = time.monotonic()
    assert "given up after" in run("verify", url, code=2)
    assert time.monotonic() - begun < 30


def test_headers_without_end_are_cut_off(web: Web) -> None:
    url = saved(web)
    most = 0

    def endless(handler: Handler) -> bool:
        nonlocal most
        written = 0
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        try:
            while written < 64 * MIB:
                handler.wfile.write(b"X-More: " + b"x" * 4000 + b"\r\n")
                written += 4010
        except OSError:
            handler.close_connection = True
        most = max(most, written)
        return True

    web.fault = endless
    assert "headers of more than 256 KiB" in run("verify", url, code=2)
    assert 0 < most < 16 * MIB  # What sockets hold, and 256 KiB.


def test_busy_servers_are_asked_again(web: Web) -> None:
    url = saved(web)
    answers = 0

    def busy(handler: Handler) -> bool:
        nonlocal answers
        answers += 1
        if answers % 2:
            handler.plain(503, Retry_After="0")
            return True
        return False

    web.fault = busy
    assert same(varve.torch.read(url), state_of())


def test_a_server_that_does_not_answer_HEAD_is_read(web: Web) -> None:
    url = saved(web)

    def no_head(handler: Handler) -> bool:
        if handler.command == "HEAD":
            handler.plain(405)
            return True
        return False

    web.fault = no_head
    assert same(varve.torch.read(url), state_of())


# ---- TLS ----


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that nobody has signed, and its key."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", certificate, "-keyout", key]
    subprocess.run(["openssl", *command], check=True, capture_output=True)
    return certificate, key


def test_certificates_are_checked_and_tls_is_not_left(
    web: Web, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    saved(web)
    with served(web.root, certificate) as safe:
        assert safe.url.startswith("https://")
        url = safe.url + "/run/step-1"
        assert "VARVE_HTTP_CA_BUNDLE" in run("verify", url, code=2)
        assert safe.requests == []
        trusted = str(certificate[0])
        assert "clean" in run("verify", url, VARVE_HTTP_CA_BUNDLE=trusted)
        assert "clean" in run("verify", url, SSL_CERT_FILE=trusted)
        safe.fault = redirect(web.url)
        web.requests.clear()
        output = run("verify", url, code=2, VARVE_HTTP_CA_BUNDLE=trusted)
        assert "from https to http" in output
        assert web.requests == []


# ---- redirects and logins ----


def redirect(to: str) -> Any:
    def fault(handler: Handler) -> bool:
        handler.plain(302, Location=to + handler.path)
        return True

    return fault


def test_redirects_are_followed_and_the_login_stays_at_home(web: Web, tmp_path: Path) -> None:
    saved(web)
    (tmp_path / "front").mkdir()
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password hunter2\n")
    with served(tmp_path / "front") as front:
        front.login = "me:hunter2"
        front.fault = redirect(web.url)
        output = run("verify", front.url + "/run/step-1", NETRC=str(netrc))
    assert "clean" in output and "hunter2" not in output
    assert web.requests and all("authorization" not in headers for _, _, headers in web.requests)


def test_a_login_is_needed_and_never_shown(web: Web, tmp_path: Path) -> None:
    url = saved(web)
    web.login = "me:hunter2"
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1\n  login me\n  password wrong2\n")
    output = run("verify", url, code=2, NETRC=str(netrc))
    assert "401" in output and "netrc" in output and "wrong2" not in output
    netrc.write_text("machine 127.0.0.1\n  login me\n  password hunter2\n")
    assert "clean" in run("verify", url, NETRC=str(netrc))


def test_redirects_have_an_end(web: Web) -> None:
    url = saved(web)
    web.fault = redirect("")
    assert "more than 5 times" in run("verify", url, code=2)
    assert len(web.requests) < 40


@pytest.mark.parametrize("to", ["file:///etc/passwd?", "http://me:hunter2@127.0.0.1:9"])
def test_redirects_to_what_is_no_plain_url_are_refused(web: Web, to: str) -> None:
    url = saved(web)
    web.fault = redirect(to)
    output = run("verify", url, code=2)
    assert "redirects to" in output and "hunter2" not in output


def test_the_query_of_a_redirect_is_not_shown(web: Web) -> None:
    url = saved(web)
    web.fault = lambda handler: (
        handler.plain(302, Location="http://127.0.0.1:9/x?signature=hunter2") is None
    )
    output = run("verify", url, code=2)
    assert "127.0.0.1:9" in output and "hunter2" not in output


def test_notes_of_uploads_are_read_while_other_threads_run(web: Web) -> None:
    """The server is a thread of this process, and answers only where the call has given up the GIL."""
    path = saved(web)
    note = web.root / "run" / ".step-1.varve-upload"
    note.write_text("s3://bucket/run/step-1\n")
    assert varve._core.uploads.pending_upload(path) == b"s3://bucket/run/step-1"
