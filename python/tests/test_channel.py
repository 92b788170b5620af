"""Ranks find each other, name missing ranks, and are interrupted: real processes over sockets."""

from __future__ import annotations

import datetime
import os
import socket
import threading
from pathlib import Path

import channel_jobs as jobs
import pytest
import torch.distributed as dist
from ranks import errors_of_ranks, run_ranks

import varve
from varve.torch import _coordinator
from varve.torch._addresses import Address
from varve.torch._channel import Channel


@pytest.mark.parametrize("sub", [False, True])
@pytest.mark.parametrize("verb", jobs.VERBS)
def test_ranks_in_different_numbers_of_groups_save_and_load(
    verb: str, sub: bool, tmp_path: Path
) -> None:
    run_ranks(4, jobs.save_with_uneven_groups, str(tmp_path), verb, sub)
    if verb != "load":
        assert varve.verify(tmp_path / "all") == []


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("verb", ["save", "load", "async_save"])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_does_not_come_is_named_within_the_time_limit(
    verb: str, victim: int, warm: bool, tmp_path: Path
) -> None:
    told = run_ranks(3, jobs.come_late, str(tmp_path), verb, victim, warm)
    others = [text for rank, text in enumerate(told) if rank != victim]
    assert all(f"rank {victim}" in text and "deadline" in text for text in others), told


@pytest.mark.slow
def test_a_late_rank_is_told_and_the_next_call_has_all_ranks(tmp_path: Path) -> None:
    told = run_ranks(3, jobs.be_late_and_go_on, str(tmp_path))
    assert [[text == "saved" for text in texts] for texts in told] == [[True, False, True]] * 3, (
        told
    )
    assert all("rank 1: did not come" in texts[1] for texts in told), told
    assert all("every rank of the process group has to make this call" in t[1] for t in told), told


def test_ranks_that_make_different_calls_are_told_which(tmp_path: Path) -> None:
    errors = errors_of_ranks(2, jobs.make_different_calls, str(tmp_path / "step"))
    assert "rank 1: calls load step-other while rank 0 calls save step" in errors[0], errors


def test_two_threads_of_a_rank_save_one_after_the_other(tmp_path: Path) -> None:
    assert run_ranks(2, jobs.save_in_two_threads, str(tmp_path)) == [["saved", "saved"]] * 2


def test_a_signal_handler_that_saves_within_a_save_is_refused_and_does_not_hang(
    tmp_path: Path,
) -> None:
    told = run_ranks(2, jobs.save_in_a_signal_handler, str(tmp_path / "step"))
    assert all("set a flag" in text for text in told), told


@pytest.mark.slow
def test_a_rank_that_waits_logs_for_whom(tmp_path: Path) -> None:
    lines = run_ranks(3, jobs.log_waiting, str(tmp_path))
    assert "save late: rank 0 has waited 1 s for " in lines[0][0], lines
    assert any(
        "rank 2 (not there yet)" in line and "every rank of the process group" in line
        for line in lines[0]
    ), lines
    assert any("save slow" in line and "rank 1 (still w" in line for line in lines[0]), lines
    assert any("save late: rank 1 has waited" in line for line in lines[1]), lines


def test_the_advice_to_make_the_call_follows_from_data_not_from_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    channel = Channel(1, 2)
    channel.begin(1, "save x", 60.0)
    for absent in (False, True):
        caplog.clear()
        channel.peers[0].note = "rank 0, which waits for rank 3 (not there yet)"
        channel.peers[0].waits_for_absent = absent
        channel._log(30.0)
        assert ("every rank of the process group" in caplog.text) == absent


@pytest.mark.parametrize("victim", [0, 1])
def test_ctrl_c_reaches_a_rank_that_waits_and_the_others_are_told(
    victim: int, tmp_path: Path
) -> None:
    told = run_ranks(3, jobs.interrupt_while_waiting, str(tmp_path / "step"), victim)
    assert told[victim][0] == "KeyboardInterrupt"
    assert f"rank {victim}" in told[1 - victim][0] and "interrupted (Ctrl-C)" in told[1 - victim][0]
    assert all(seconds < 10 for _, seconds in told), told
    assert os.listdir(tmp_path) == []


def test_a_failed_background_save_is_logged_once_and_the_next_call_warns(tmp_path: Path) -> None:
    (lines0, warned0), (lines1, warned1) = run_ranks(2, jobs.fail_and_drop, str(tmp_path), "log")
    assert (
        len(lines0) == 1 and "a background save has failed: CheckpointExistsError" in lines0[0]
    ), lines0
    assert lines1 == []
    assert all("background save has failed" in "".join(warned) for warned in (warned0, warned1))
    assert varve.verify(tmp_path / "next") == []


def test_a_failed_background_save_is_raised_by_the_next_call_on_all_ranks(tmp_path: Path) -> None:
    outcomes = run_ranks(2, jobs.fail_and_drop, str(tmp_path), "raise")
    for lines, _ in outcomes:
        assert any(
            line.startswith("raised: ") and "background save has failed" in line for line in lines
        ), lines
    assert not (tmp_path / "next").exists()


def test_a_store_takes_the_keys_of_4096_ranks() -> None:
    # TCPStore refuses keys of more than 8 KiB; the numbers of 4,096 ranks alone are 20 KiB.
    store = dist.TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=30))
    client = dist.TCPStore("127.0.0.1", store.port, None, False, datetime.timedelta(seconds=30))
    ranks = tuple(range(4096))
    key = f"varve/channel/{_coordinator._digest(ranks)}"
    before = store.num_keys()
    address = Address("host", ("127.0.0.1",), 1, "token")
    store.set(key, address.encode())
    for _ in ranks:
        client.wait([key], datetime.timedelta(seconds=30))
        assert Address.decode(client.get(key)) == address
    assert store.num_keys() == before + 1


def _connected() -> tuple[Channel, Channel]:
    ends = (Channel(0, 2), Channel(1, 2))
    ends[1].connect(ends[0].listen(), float("inf"))
    return ends


def test_messages_larger_than_a_socket_takes_arrive() -> None:
    hub, other = _connected()
    message = os.urandom(1 << 20) * 40
    hub.begin(1, "x", 30)
    other.begin(1, "x", 30)
    sender = threading.Thread(target=lambda: (other.send(0, message), other.flush(30)))
    sender.start()
    assert hub.receive(1, 30) == message
    sender.join()
    hub.send(1, message)
    taker = threading.Thread(target=hub.flush, args=(30,))
    taker.start()
    assert other.receive(0, 30) == message
    taker.join()


def test_a_stranger_is_turned_away_and_disturbs_no_call() -> None:
    hub, other = _connected()
    assert hub.address is not None
    for first in (b"GET / HTTP/1.0\r\n\r\n", b"\1" + bytes(16), b"\1" + bytes(8) + b"\xff" * 8):
        stranger = socket.create_connection(("127.0.0.1", hub.address.port))
        stranger.sendall(first)
    hub.begin(1, "x", 30)
    other.begin(1, "x", 30)
    other.send(0, b"plan")
    assert hub.receive(1, 30) == b"plan"


def test_what_is_left_of_an_earlier_call_is_not_taken_for_a_later_ones() -> None:
    hub, other = _connected()
    hub.begin(1, "x", 30)
    other.begin(1, "x", 30)
    other.send(0, b"first")
    assert hub.receive(1, 30) == b"first"
    other.send(0, b"never read")
    hub.send(1, b"never read either")
    hub.end()
    other.end()
    hub.begin(2, "x", 30)
    other.begin(2, "x", 30)
    other.send(0, b"second")
    assert hub.receive(1, 30) == b"second"
    hub.send(1, b"answer")
    assert other.receive(0, 30) == b"answer"


def test_a_rank_whose_connection_broke_connects_again_with_its_next_call() -> None:
    hub, other = _connected()
    assert hub.address is not None
    connection = other.peers[0].connection
    assert connection is not None
    connection.sock.shutdown(socket.SHUT_RDWR)
    assert not other.connected
    hub.begin(1, "x", 30)
    other.connect(hub.address, float("inf"))
    other.begin(1, "x", 30)
    other.send(0, b"here")
    assert hub.receive(1, 30) == b"here"


def test_rank_0_without_descriptors_says_so_and_takes_the_rank_with_the_next_call() -> None:
    run_ranks(1, jobs.run_out_of_descriptors)
