"""An API server that fails for minutes, cuts its streams anywhere and says when to try
again: no agent's work is lost, and the events tell of each wait and each pause.

The server is a real one, and so are the SDKs; only the network between them, and the
time, are the simulator's. One test has a real network and real seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.agent import (
    Agent,
    AssistantMessage,
    Message,
    Retrying,
    ToolAnswer,
    TransientError,
    UserMessage,
)
from actors.models import anthropic, loop, openai
from actors.testing import fake_env
from supervisor.agents import AgentPolicy
from supervisor.permissions import Permissions
from supervisor.runtime import (
    AgentSaid,
    TaskContinued,
    TaskPaused,
    TaskSnapshot,
    open_runtime,
)
from supervisor.simulation import Sim, cancel_everywhere, simulate
from supervisor.tools import Field, Tool, ToolResult
from supervisor.tree import Event
from tests.actors import model_server as web
from tests.actors.agent.agents import Stage
from tests.actors.model_server import ModelServer, Request

DIRECTORY = Path("/tasks")
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""The zero of trio's clock, in `fake_env`."""
ROUNDS = 2
"""Rounds of tools before the answer."""
RETRIES = 4
PATIENCE = 60.0


# ---- Two APIs, which always know what comes next ------------------------------


@attrs.frozen
class Provider:
    name: str
    open: Callable[..., Any]
    client: Callable[[Any], Any]
    error: Callable[[str, str], dict[str, Any]]
    """The body of an error, of a kind and a message."""
    reply: Callable[[int], web.Events]
    """The whole stream of the reply of a round."""
    round: Callable[[list[dict[str, Any]]], int]
    """Which round a conversation has come to."""
    path: str
    words: bytes
    """What stands in an event that has text, before it."""


def text_of(number: int) -> tuple[str, str]:
    return ("It is ", "done.") if number == ROUNDS else ("Step ", f"{number}.")


def _anthropic_reply(number: int) -> web.Events:
    blocks = [web.text_block(*text_of(number))]
    if number < ROUNDS:
        blocks.append(web.tool_block(f"use_{number}", "Look", '{"at": ', f"{number}}}"))
    return web.of_anthropic(*blocks, stop="tool_use" if number < ROUNDS else "end_turn")


def _openai_reply(number: int) -> web.Events:
    deltas = web.says(*text_of(number))
    if number < ROUNDS:
        deltas += web.calls(0, f"use_{number}", "Look", '{"at": ', f"{number}}}")
    return web.of_openai(*deltas, finish="tool_calls" if number < ROUNDS else "stop")


def _anthropic_client(http: Any) -> Any:
    import anthropic as sdk

    return sdk.AsyncAnthropic(api_key="k", base_url="http://api", http_client=http)


def _openai_client(http: Any) -> Any:
    import openai as sdk

    return sdk.AsyncOpenAI(api_key="k", base_url="http://api/v1", http_client=http)


PROVIDERS = [
    Provider(
        "anthropic",
        anthropic.open_model,
        _anthropic_client,
        web.anthropic_error,
        _anthropic_reply,
        lambda messages: sum(
            part["type"] == "tool_result" for m in messages for part in m["content"]
        ),
        "",
        b'"text_delta", "text": "',
    ),
    Provider(
        "openai",
        openai.open_model,
        _openai_client,
        web.openai_error,
        _openai_reply,
        lambda messages: sum(m["role"] == "tool" for m in messages),
        "/v1",
        b'{"content": "',
    ),
]


# ---- What may happen to a request ---------------------------------------------


@attrs.frozen
class Outcome:
    """What comes of one request."""

    how: Literal["ok", "cut", "refused", "error"]
    """``cut``: the connection ends behind some bytes of the stream. ``refused``: there
    is a status, and no stream. ``error``: it is an event, behind some of the stream."""
    at: int = 0
    """Behind how many bytes, or events."""
    status: int = 529
    after: float | None = None
    """The seconds after which it passes, as the API says."""
    said_by: Literal["header", "ms", "date", "limit", "words"] = "header"
    """How it says that."""

    @property
    def passes(self) -> bool:
        return self.how != "refused" or self.status in (408, 409, 429, 500, 503, 529)

    def answer(self, api: Provider) -> web.Answer:
        return partial(self._answer, api)

    async def _answer(self, api: Provider, request: Request) -> None:
        whole = api.reply(api.round(request.body["messages"]))
        if self.how == "ok":
            await web.streams(whole)(request)
        elif self.how == "cut":
            await web.breaks_off([self.kept(whole)])(request)
        elif self.how == "error":
            error = web.sse(api.error("overloaded_error", self._message()), "error")
            await web.streams([*whole[: self.at % len(whole)], error])(request)
        else:
            body = api.error("some_error", self._message())
            await web.fails(self.status, body, **self._headers())(request)

    def kept(self, whole: web.Events) -> bytes:
        """What comes of a stream that is cut: never all of it."""
        stream = b"".join(whole)
        return stream[: self.at % len(stream)]

    def _at(self) -> datetime:
        return EPOCH + timedelta(seconds=trio.current_time() + (self.after or 0.0))

    def _message(self) -> str:
        if self.after is None or (self.how == "refused" and self.said_by != "words"):
            return "not now"
        return f"Limit reached. Try again at {self._at().isoformat()}."

    def _headers(self) -> dict[str, str]:
        if self.after is None:
            return {}
        at = self._at()
        match self.said_by:
            case "header":
                return {"retry_after": f"{self.after:g}"}
            case "ms":
                return {"retry_after_ms": f"{self.after * 1000:g}"}
            case "date":
                return {"retry_after": at.strftime("%a, %d %b %Y %H:%M:%S GMT")}
            case "limit" if self.status == 429:
                return {
                    "anthropic_ratelimit_tokens_remaining": "0",
                    "anthropic_ratelimit_tokens_reset": at.isoformat(),
                }
            case _:
                return {}

    def known(self) -> float | None:
        """What a client can know of ``after``."""
        if self.how == "cut":
            return None
        if self.how == "refused" and self.said_by == "limit" and self.status != 429:
            return None
        return self.after

    def words(self, api: Provider, number: int) -> str:
        """The text that is shown before it fails."""
        whole = api.reply(number)
        if self.how == "cut":
            *ended, _ = self.kept(whole).split(b"\n\n")
        elif self.how == "error":
            ended = whole[: self.at % len(whole)]
        else:
            return ""
        found = [event.partition(api.words)[2] for event in ended]
        return "".join(it.partition(b'"')[0].decode() for it in found)


def half_an_answer(api: Provider) -> Outcome:
    """A cut behind the first words."""
    place = b"".join(api.reply(0)).index(api.words)
    cuts = (Outcome("cut", behind) for behind in range(place, 9999))
    return next(cut for cut in cuts if cut.words(api, 0))


PAUSES = st.sampled_from([None, None, 1.0, 45.0, 60.0, 300.0, 7200.0])
OUTCOMES = st.one_of(
    st.builds(Outcome, st.just("ok")),
    st.builds(Outcome, st.just("cut"), st.integers(0, 3000)),
    st.builds(
        Outcome,
        st.just("refused"),
        status=st.sampled_from([408, 409, 429, 429, 429, 500, 503, 529]),
        after=PAUSES,
        said_by=st.sampled_from(["header", "ms", "date", "limit", "words"]),
    ),
    st.builds(Outcome, st.just("error"), st.integers(0, 6), after=PAUSES),
)
LAST = st.sampled_from([None, None, None, 400, 401, 403, 404, 413])


# ---- What must come of it -----------------------------------------------------

Step = tuple[Any, ...]


def expected(api: Provider, outcomes: Sequence[Outcome]) -> list[Step]:
    """All that must be told, by the rules: ``said``, ``looked``, ``again`` with the
    number of the try and its wait, ``paused`` with what is known of its end, and how
    it ends."""
    steps: list[Step] = []
    number, tries, was_told = 0, 0, False
    for outcome in outcomes:
        known = outcome.known()
        words = outcome.words(api, number)
        if outcome.how == "ok":
            steps.append(("said", "".join(text_of(number))))
            if number == ROUNDS:
                return [*steps, ("ended", None)]
            steps.append(("looked", number))
            number, tries, was_told = number + 1, 0, False
            continue
        if words:
            steps.append(("said", words))
        if not outcome.passes:
            return [*steps, ("ended", outcome.status)]
        is_far = known is not None and known > PATIENCE
        if not words and not is_far and tries < RETRIES:
            tries += 1
            backoff = min(0.5 * 2 ** (tries - 1), 8.0) * (1 - 0.25 * 0.5)
            steps.append(("again", tries, backoff if known is None else known))
            was_told = was_told or known is not None
            continue
        if not words and not is_far and was_told:
            known = None
        steps.append(("paused", known))
        tries, was_told = 0, False
    raise AssertionError("it goes on")


def followed(stage: Stage) -> list[Step]:
    """What a run has told, in the same form."""
    steps: list[Step] = []
    for event in stage.events:
        if isinstance(event, AssistantMessage):
            steps.append(("said", event.text))
            steps += [("looked", use.input["at"]) for use in event.tool_uses]
        elif isinstance(event, Retrying):
            steps.append(("again", event.attempt, pytest.approx(event.wait, abs=0.01)))
    return steps


class Looks(Stage):
    """An agent with a tool that counts its calls."""

    def __init__(self, *args: Any, looked: list[str], **options: Any) -> None:
        super().__init__(*args, **options)

        async def use_tool(use: Any) -> ToolAnswer:
            looked.append(use.id)
            await trio.lowlevel.checkpoint()
            return ToolAnswer(use.id, "seen")

        self.host.use_tool = use_tool


async def play(
    api: Provider, outcomes: Sequence[Outcome], sim: Sim
) -> tuple[list[Step], list[str], list[Message]]:
    """Let an agent work, and go on from its transcript after each pause."""
    import httpx2

    sim.network(patch=True)
    server = ModelServer("http://api", [outcome.answer(api) for outcome in outcomes])
    told: list[Step] = []
    looked: list[str] = []
    transcript: list[Message] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_tcp, server.serve, 80, host="api"))
        async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
            client = api.client(http)
            async with api.open("m", client=client, env=fake_env()) as model:
                while True:
                    stage = Looks(loop(model), looked=looked)
                    stage.host.history = [*transcript]
                    end: Step
                    try:
                        await stage.run()
                        end = ("ended", None)
                    except TransientError as error:
                        now = trio.current_time()
                        left = None
                        if error.resume_at is not None:
                            at = (error.resume_at - EPOCH).total_seconds()
                            left = at - now
                        end = ("paused", left)
                        await trio.sleep(60.0 if left is None else left)
                    except Exception as error:
                        end = ("ended", int(str(error).split()[1].strip(",")))
                    told += [*followed(stage), end]
                    transcript += stage.host.messages
                    if end[0] == "ended":
                        break
        nursery.cancel_scope.cancel()
    return told, looked, transcript


@pytest.fixture(params=PROVIDERS, ids=lambda provider: provider.name)
def api(request: pytest.FixtureRequest) -> Provider:
    pytest.importorskip(request.param.name, reason="the extra is not installed")
    provider: Provider = request.param
    return provider


def check(api: Provider, outcomes: Sequence[Outcome]) -> None:
    result = simulate(partial(play, api, outcomes), limit=1e6)
    assert result.error is None, result.error
    told, looked, transcript = result.value
    wanted = expected(api, outcomes)
    assert len(told) == len(wanted)
    for have, must in zip(told, wanted, strict=True):
        assert have[0] == must[0]
        assert have[1:] == tuple(
            pytest.approx(it, abs=1.1) if isinstance(it, float) else it
            for it in must[1:]
        )
    # No call is made twice, and none is forgotten.
    done = [step[1] for step in wanted if step[0] == "looked"]
    assert looked == [f"use_{number}" for number in done]
    # The conversation is what was told, and can be sent.
    kept = [m.text for m in transcript if isinstance(m, AssistantMessage)]
    assert kept == [step[1] for step in wanted if step[0] == "said"]
    made = [
        u.id for m in transcript if isinstance(m, AssistantMessage) for u in m.tool_uses
    ]
    answered = [
        a.tool_use_id
        for m in transcript
        if isinstance(m, UserMessage)
        for a in m.tool_answers
    ]
    assert made == answered == looked


OK = [Outcome("ok")] * (ROUNDS + 1)


@settings(max_examples=25, deadline=None)
@given(outcomes=st.lists(OUTCOMES, max_size=14), last=LAST)
def test_whatever_the_api_does_no_work_is_lost_and_every_wait_is_told(
    api: Provider, outcomes: list[Outcome], last: int | None
) -> None:
    tail = [] if last is None else [Outcome("refused", status=last, after=30.0)]
    check(api, [*outcomes, *tail, *OK])


def test_a_stream_may_be_cut_before_and_behind_each_of_its_events(
    api: Provider,
) -> None:
    """AG14: what was said is kept, and passes for no answer."""
    places = {0}
    for number in range(ROUNDS + 1):
        end = 0
        for event in api.reply(number):
            end += len(event)
            places |= {end - len(event) // 2, end - 2, end - 1, end, end + 1}
    outcomes: list[Outcome] = []
    for place in sorted(places):
        # In each round.
        cut = Outcome("cut", place)
        outcomes = [each for ok in OK for each in (cut, ok)]
        check(api, outcomes)


def test_a_cancellation_anywhere_in_it_leaves_nothing_behind(api: Provider) -> None:
    """In a request, in a wait before the next, in a pause: of all those points some."""
    outcomes = [Outcome("refused", status=503), half_an_answer(api), *OK]

    async def program(sim: Sim) -> None:
        async def work() -> None:
            await play(api, outcomes, sim)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)

    report = cancel_everywhere(program, schedules=1, max_points=40, limit=1e6)
    assert report.points == 40


# ---- Under a runtime ----------------------------------------------------------


@attrs.define
class Told:
    """What one agent of a runtime has come to."""

    done: TaskSnapshot
    steps: list[Step]
    """As `expected` has them. A pause has the reason in place of its end."""
    pauses: list[tuple[float, float]]
    """From when to when."""
    looked: list[int]
    texts: list[str]
    """What the model has said, by the transcript."""


async def play_under_a_runtime(
    api: Provider, outcomes: Sequence[Outcome], policy: dict[str, Any], sim: Sim
) -> Told:
    """Launch an agent and wait for its end, whatever comes between."""
    import httpx2

    sim.network(patch=True)
    server = ModelServer("http://api", [outcome.answer(api) for outcome in outcomes])
    looked: list[int] = []

    async def look(call: Any) -> ToolResult:
        looked.append(call.arguments["at"])
        return ToolResult("seen")

    tool = Tool("Look", "Looks.", [Field("at", "Where.", "integer")], look)
    agents = AgentPolicy(
        permissions=Permissions(mode="bypass"), tools=lambda *_: [tool], **policy
    )
    events: list[Event] = []
    ends: list[tuple[str, float]] = []
    env = fake_env()
    async with (
        httpx2.AsyncClient(trust_env=False, verify=False) as http,
        api.open("m", client=api.client(http), env=env) as model,
        open_runtime(DIRECTORY, env=env, agents=agents) as runtime,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(partial(trio.serve_tcp, server.serve, 80, host="api"))

        async def follow() -> None:
            with runtime.events.subscribe(agents=True) as stream:
                async for event in stream:
                    events.append(event)
                    if isinstance(event, TaskPaused | TaskContinued):
                        ends.append((type(event).__name__, trio.current_time()))

        nursery.start_soon(follow)
        await trio.testing.wait_all_tasks_blocked()
        task = await runtime.launch(Agent(loop(model), "do it"))
        done = await task.wait()
        read = await runtime.transcripts.load(task.id)
        assert read is not None
        nursery.cancel_scope.cancel()
    steps: list[Step] = []
    for event in events:
        match event:
            case AgentSaid(event=AssistantMessage(text=text, tool_uses=uses)):
                steps.append(("said", text))
                steps += [("looked", use.input["at"]) for use in uses]
            case AgentSaid(event=Retrying(attempt=attempt, wait=wait)):
                steps.append(("again", attempt, wait))
            case TaskPaused(reason=reason):
                steps.append(("paused", reason))
            case _:
                pass
    assert [name for name, _ in ends] == ["TaskPaused", "TaskContinued"] * (
        len(ends) // 2
    )
    times = [time for _, time in ends]
    texts = [m.text for m in read.messages if isinstance(m, AssistantMessage)]
    pauses = list(zip(times[::2], times[1::2], strict=True))
    return Told(done, steps, pauses, looked, texts)


def told_by(api: Provider, outcomes: Sequence[Outcome], **policy: Any) -> Told:
    result = simulate(partial(play_under_a_runtime, api, outcomes, policy), limit=1e6)
    assert result.error is None, result.error
    told: Told = result.value
    return told


@settings(max_examples=15, deadline=None)
@given(outcomes=st.lists(OUTCOMES, max_size=10), last=LAST)
def test_under_a_runtime_an_agent_pauses_for_each_and_goes_on_to_its_end(
    api: Provider, outcomes: list[Outcome], last: int | None
) -> None:
    tail = [] if last is None else [Outcome("refused", status=last, after=30.0)]
    everything = [*outcomes, *tail, *OK]
    told = told_by(api, everything, patience=1e6)
    *wanted, (_, status) = expected(api, everything)

    assert [step[0] for step in told.steps] == [step[0] for step in wanted]
    assert told.looked == [step[1] for step in wanted if step[0] == "looked"]
    said = [step[1] for step in wanted if step[0] == "said"]
    assert told.texts == said
    if status is None:
        assert (told.done.status.value, told.done.result) == (
            "completed",
            "It is done.",
        )
    else:
        assert told.done.status.value == "failed"
        assert told.done.error is not None
        assert f"HTTP {status}" in told.done.error.message
        assert told.done.result == (said[-1] if said else None)
    # No pause ends before the API has said that it is over.
    known = [step[1] for step in wanted if step[0] == "paused"]
    for (began, ended), left in zip(told.pauses, known, strict=True):
        assert ended - began >= (50 if left is None else left - 1.1)


def test_an_api_that_fails_for_minutes_costs_an_agent_nothing_but_time(
    api: Provider,
) -> None:
    """Twenty minutes of 529, in the middle of the work."""
    down = [Outcome("refused", status=529)] * 21
    told = told_by(api, [Outcome("ok"), *down, *OK[1:]])
    assert told.done.status.value == "completed"
    assert told.looked == [0, 1]
    assert [step[0] for step in told.steps].count("again") == 4 * 4 + 1
    waits = [ended - began for began, ended in told.pauses]
    assert waits == [pytest.approx(60 * it, rel=0.1) for it in (1, 2, 5, 10)]


def test_an_api_that_cuts_each_answer_behind_its_first_words_is_given_up(
    api: Provider,
) -> None:
    """What is said of an answer is no answer, so patience comes to an end."""
    told = told_by(api, [half_an_answer(api)], patience=3600.0)
    assert told.done.status.value == "failed"
    assert told.done.error is not None
    assert told.done.error.message.startswith("it was tried ")
    waits = [ended - began for began, ended in told.pauses]
    assert sum(waits) == pytest.approx(3600, rel=0.01)
    assert len(waits) == 6
    assert told.texts == ["Step "] * 7
    assert told.looked == []


def test_an_agent_with_real_seconds_goes_on_when_the_api_has_said_so(
    api: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the loopback, with the real clock: no simulator and no double."""
    monkeypatch.setenv(f"{api.name.upper()}_API_KEY", "k")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)

    async def limited(request: Request) -> None:
        at = datetime.now(UTC) + timedelta(seconds=1.5)
        body = api.error("rate_limit_error", f"Try again at {at.isoformat()}.")
        await web.fails(429, body, x_should_retry="false")(request)

    async def whole(request: Request) -> None:
        await Outcome("ok").answer(api)(request)

    async def look(call: Any) -> ToolResult:
        return ToolResult("seen")

    async def main() -> None:
        tool = Tool("Look", "Looks.", [Field("at", "Where.", "integer")], look)
        policy = AgentPolicy(
            permissions=Permissions(mode="bypass"), tools=lambda *_: [tool]
        )
        with trio.fail_after(60):
            async with (
                web.open_model_server(whole, limited, whole) as server,
                api.open("m", base_url=server.url + api.path) as model,
                open_runtime(tmp_path, agents=policy) as runtime,
            ):
                began = trio.current_time()
                task = await runtime.launch(Agent(loop(model), "do it"))
                done = await task.wait()
                assert (done.status.value, done.result) == ("completed", "It is done.")
                assert trio.current_time() - began > 1.0
                assert len(server.requests) == 4

    trio.run(main)
