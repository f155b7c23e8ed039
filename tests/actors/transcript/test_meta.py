"""What is kept of an agent beside its transcript, its link, and its id."""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import transcript
from actors.testing import fake_env
from actors.transcript import AgentMeta, TranscriptStore
from actors.transcript._meta import decode_meta
from actors.transcript._records import dump
from tests.actors.transcript.transcripts import ID, recorder, rounds

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes and links")


def meta(agent_id: str = ID, status: str = "running", **fields: Any) -> AgentMeta:
    return AgentMeta(agent_id=agent_id, run_id=f"{agent_id}-1", status=status, **fields)


def full(**fields: Any) -> AgentMeta:
    return meta(
        type="explore",
        description="Look \u2028 round",
        owner="a7",
        prompt="\0\ud800\n",
        tools=("Read", "Bash"),
        disallowed_tools=("Agent",),
        model="m",
        cwd="/srv",
        session="s",
        depth=2,
        permission_mode="plan",
        forked=True,
        one_shot=True,
        resumes=3,
        error="why",
        **fields,
    )


# ---- Metas ------------------------------------------------------------------------


@posix
async def test_a_meta_is_written_privately_as_a_whole_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    """OF10, TR6: over a looser file, and in place of a planted link."""
    path = tmp_path / f"agent-{ID}.meta.json"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"not ours")
    async with recorder(tmp_path) as r:
        assert r.store.read_meta(ID) is None
        path.write_bytes(b"old")
        path.chmod(0o666)
        r.store.write_meta(full())
        await r.store.flush()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.unlink()
        path.symlink_to(elsewhere)
        assert r.store.metas() == []
        assert "could not be read" in r.warnings.pop()[1]
        r.store.write_meta(full())
        await r.store.flush()
        assert not path.is_symlink()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert elsewhere.read_bytes() == b"not ours"
        assert sorted(os.listdir(tmp_path)) == [path.name, "elsewhere"]
        assert r.store.read_meta(ID) == full()
        assert r.store.metas() == [full()]
        assert r.warnings == []
    async with recorder(tmp_path) as r:
        assert r.store.read_meta(ID) == full()


async def test_the_newest_meta_counts_also_before_it_is_written() -> None:
    """OF10, TR7: each transition is kept."""
    async with recorder() as r:
        for number in range(5):
            r.store.write_meta(meta(resumes=number))
            assert r.store.read_meta(ID) == meta(resumes=number)
            assert r.store.metas() == [meta(resumes=number)]
        await r.store.flush()
        assert r.store.read_meta(ID) == meta(resumes=4)
        r.store.write_meta(meta(status="completed"))
    async with recorder(env=r.env) as r:
        assert r.store.metas() == [meta(status="completed")]


async def test_metas_that_cannot_be_read_are_left_out_and_told() -> None:
    """TR6: a missing directory has none."""
    env = fake_env({})
    async with recorder(env=env) as r:
        for agent_id in ("b", "a"):
            r.store.write_meta(meta(agent_id))
        await r.store.flush()
        directory = r.store.directory
        bad = {
            "torn": b'{"agent_id":"torn","run_id',
            "list": b"[]",
            "empty": b"",
            "short": b'{"agent_id":"short"}',
            "wrong": b'{"agent_id":"wrong","run_id":5,"status":"running"}',
            "tools": b'{"agent_id":"tools","run_id":"","status":"","tools":"Read"}',
            "other": b'{"agent_id":"a","run_id":"a-1","status":"running"}',
            "link": None,
        }
        for agent_id, contents in bad.items():
            path = directory / f"agent-{agent_id}.meta.json"
            if contents is None:
                env.files.link(path, "agent-a.meta.json")
            else:
                env.files.replace(path, contents)
        env.files.replace(directory / "agent-a b.meta.json", b"no id of ours")
        later = b'{"agent_id":"c","run_id":"c-1","status":"running","new_field":1}'
        env.files.replace(directory / "agent-c.meta.json", later)
        assert r.store.metas() == [meta("a"), meta("b"), meta("c")]
        assert sorted(agent_id for agent_id, _ in r.warnings) == sorted(bad)
        assert all("could not be read" in text for _, text in r.warnings)
        nowhere = TranscriptStore(Path("/nowhere"), env, lambda *warning: None)
        assert nowhere.metas() == []


async def test_many_large_metas_keep_no_small_one_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TR6: what is left out is told by its name, and can be read by itself; one that
    is too large to be one is told as such."""
    monkeypatch.setattr(transcript, "_METAS_LIMIT", 20_000)
    monkeypatch.setattr("actors.transcript._meta.META_LIMIT", 9_000)
    env = fake_env({})
    async with recorder(env=env) as r:
        for number in range(4):
            r.store.write_meta(meta(f"a-large{number}", prompt="x" * 8_000))
            r.store.write_meta(meta(f"z-small{number}"))
        await r.store.flush()
        path = r.store.directory / "agent-huge.meta.json"
        env.files.replace(path, b" " * 10_000)
        listed = [m.agent_id for m in r.store.metas()]
        assert listed[-4:] == [f"z-small{number}" for number in range(4)]
        assert len(listed) == 6
        told = dict(r.warnings)
        assert told.keys() | {*listed} == {
            "huge",
            *(f"a-large{number}" for number in range(4)),
            *listed,
        }
        assert not told.keys() & {*listed}
        assert "10,000 bytes" in told["huge"]
        for number in range(4):
            assert r.store.read_meta(f"a-large{number}") is not None


async def test_a_meta_that_cannot_be_written_is_told_once_and_tried_again() -> None:
    """OF10, TR2."""
    env = fake_env({})
    async with recorder(env=env) as r:
        env.files.write_error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for number in range(5):
            r.store.write_meta(meta(resumes=number))
            await r.store.flush()
        assert len(r.warnings) == 1
        assert "meta could not be written" in r.warnings[0][1]
        assert r.store.read_meta(ID) == meta(resumes=4)
        env.files.write_error = None
        await r.store.flush()
        assert b'"resumes":4' in env.files.contents(
            r.store.directory / f"agent-{ID}.meta.json"
        )
        # It is told again when it fails again.
        env.files.write_error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        r.store.write_meta(meta(resumes=5))
        await r.store.flush()
        assert len(r.warnings) == 2


@pytest.mark.parametrize("field", [a.name for a in attrs.fields(AgentMeta)])
def test_a_meta_of_wrong_types_is_refused(field: str) -> None:
    """TR6: whoever has written it to the directory."""
    said = attrs.asdict(full(), recurse=False)
    assert decode_meta(dump(said)) == full()
    optional = "None" in str(attrs.fields_dict(AgentMeta)[field].type)
    for wrong in ({"no": "such"}, [5], [[5, None]], [["text", 5]], None):
        if wrong is None and optional and field != "messages":
            continue
        with pytest.raises(ValueError, match=f"^{field} must "):
            decode_meta(dump({**said, field: wrong}))


@pytest.mark.parametrize("field", ["tools", "disallowed_tools", "above"])
def test_what_is_not_a_name_is_told_by_itself(field: str) -> None:
    """TR6: wherever it stands; that there are too many is another thing."""
    said = attrs.asdict(full(), recurse=False)
    with pytest.raises(ValueError, match=f"^{field} must hold only str, not 5$"):
        decode_meta(dump({**said, field: ["Read"] * 7 + [5]}))
    with pytest.raises(ValueError, match=f"^{field} must be 1.* names or fewer, not"):
        decode_meta(dump({**said, field: ["Read"] * 10_001}))


texts = st.text(st.characters(codec=None, categories=None), max_size=20)


@settings(max_examples=100, deadline=None)
@given(texts, texts, st.none() | st.lists(texts, max_size=3).map(tuple))
def test_any_text_in_a_meta_comes_back(
    prompt: str, description: str, tools: tuple[str, ...] | None
) -> None:
    async def main() -> None:
        async with recorder() as r:
            given = meta(prompt=prompt, description=description, tools=tools)
            r.store.write_meta(given)
            await r.store.flush()
            back = r.store.read_meta(ID)
            assert back is not None
            assert joined(back.prompt) == joined(prompt)
            assert joined(back.description) == joined(description)
            assert back.tools is None or tools is not None
            assert r.warnings == []

    trio.run(main)


def joined(text: str) -> str:
    # Two halves of a surrogate pair come back as the character they are.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


# ---- The link ------------------------------------------------------------------------


@posix
async def test_the_output_of_an_agent_is_a_link_to_its_transcript(
    tmp_path: Path,
) -> None:
    """OF4: in place of what was there."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"not ours")
    async with recorder(tmp_path) as r:
        path = tmp_path / f"{ID}.output"
        for before in ("nothing", "link", "file"):
            if before == "link":
                path.unlink()
                path.symlink_to(elsewhere)
            elif before == "file":
                path.unlink()
                path.write_bytes(b"old")
            assert r.store.link_output(ID) == path
            assert path.is_symlink()
            assert os.readlink(path) == f"agent-{ID}.jsonl"
        await r.record(*rounds(1))
        assert path.read_bytes().count(b"\n") == len(rounds(1))
        assert elsewhere.read_bytes() == b"not ours"
        assert r.warnings == []


async def test_where_no_link_can_be_the_output_is_an_empty_file() -> None:
    """OF4: and that is told."""
    env = fake_env({})
    async with recorder(env=env) as r:
        path = r.store.directory / f"{ID}.output"
        for before in (None, b"old"):
            env.files.write_error = None
            if before is not None:
                env.files.replace(path, before)
            env.files.write_error = OSError(errno.EPERM, os.strerror(errno.EPERM))
            assert r.store.link_output(ID) == path
            assert env.files.contents(path) == b""
        assert [told.partition(":")[0] for _, told in r.warnings] == [
            "the output is not a link"
        ] * 2
    async with recorder(env=env) as r:
        env.files.write_error = None
        env.files.remove(path)
        env.files.make_directory(path)
        assert r.store.link_output(ID) == path
        assert len(r.warnings) == 1


# ---- Ids ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "agent_id",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "a\\b",
        "/etc/passwd",
        "a\0",
        "a\n",
        "ä",
        "a b",
        "x" * 129,
    ],
)
async def test_an_id_that_could_lead_elsewhere_is_refused(agent_id: str) -> None:
    """OF16: before anything is touched."""
    async with recorder() as r:
        store = r.store
        for call in (
            lambda: store.open_log(agent_id),
            lambda: store.read_meta(agent_id),
            lambda: store.write_meta(meta(agent_id)),
            lambda: store.link_output(agent_id),
            lambda: store.transcript_file(agent_id),
        ):
            with pytest.raises(ValueError, match="id of an agent"):
                call()
        with pytest.raises(ValueError, match="id of an agent"):
            await store.load(agent_id)
        with pytest.raises(ValueError, match="id of an agent"):
            await store.read_tail(agent_id, 1)
        await store.flush()
        assert r.env.files.names(store.directory) == []


@pytest.mark.parametrize("place", ["top", "nested", "many"])
def test_names_that_stand_there_twice_are_found_in_one_pass(place: str) -> None:
    """Of a planted file no more than it takes to read it once."""
    names = [f'"k{number}":0' for number in range(20_000)]
    if place == "many":
        names *= 2
    said = "{" + ",".join([*names, names[-1]]) + "}"
    contents = (f'{{"x":{said}}}' if place == "nested" else said).encode()
    began = time.process_time()
    with pytest.raises(ValueError, match="it says twice what 'k"):
        decode_meta(contents)
    assert time.process_time() - began < 1.0
