"""Rules as people write them in settings files: understood, or refused with what to
write."""

from __future__ import annotations

import re
import time
from typing import Any, Literal

import pytest

from supervisor.permissions import Rule

CWD = "/home/me/project"
HOME = "/home/me"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", HOME)


def means(
    effect: Literal["allow", "deny"], text: str, tool: str, /, **input: Any
) -> bool:
    return Rule(effect, text).matches(tool, input, CWD)


# The rule, a call, and whether it allows it and denies it.
CALLS: list[tuple[str, str, dict[str, Any], bool, bool]] = [
    ("Bash", "Bash", {"command": "a | b"}, True, True),
    ("Bash(*)", "Bash", {"command": "make all"}, True, True),
    ("Bash(*)", "Bash", {"command": "a | b"}, False, True),
    ("Bash(npm run build)", "Bash", {"command": "npm run build"}, True, True),
    ("Bash(npm run build)", "Bash", {"command": "npm run build -w"}, False, False),
    ("Bash(npm run build)", "Bash", {"command": "cd x && npm run build"}, False, True),
    ("Bash(cd x && make)", "Bash", {"command": "cd x && make"}, True, True),
    ("Bash(cd x && make)", "Bash", {"command": "cd x && make; rm y"}, False, True),
    ("Bash(npm run test:*)", "Bash", {"command": "npm run test"}, True, True),
    ("Bash(npm run test:*)", "Bash", {"command": "npm run test -w"}, True, True),
    ("Bash(npm run test:*)", "Bash", {"command": "npm run test:unit"}, False, True),
    ("Bash(npm run test:*)", "Bash", {"command": "npm run tests"}, False, False),
    ("Bash(rm:*)", "Bash", {"command": "rm -rf x"}, True, True),
    ("Bash(rm:*)", "Bash", {"command": "rm"}, True, True),
    ("Bash(rm:*)", "Bash", {"command": "rmdir x"}, False, False),
    ("Bash(rm:*)", "Bash", {"command": "rm-all x"}, False, False),
    ("Bash(rm:*)", "Bash", {"command": "rm x; ls"}, False, True),
    ("Bash(rm)", "Bash", {"command": "rm -rf x"}, False, True),
    ("Bash(lsof -i :*)", "Bash", {"command": "lsof -i :80"}, True, True),
    ("Bash(lsof -i :*)", "Bash", {"command": "lsof -i x"}, False, True),
    ("Bash(a -f '%H:*')", "Bash", {"command": "a -f '%H:%d'"}, True, True),
    ("Bash(/bin/rm:*)", "Bash", {"command": "rm x"}, False, True),
    ("Bash(ls *)", "Bash", {"command": "lsof"}, False, False),
    ("Bash(ls*)", "Bash", {"command": "lsof"}, True, True),
    ("Bash(git * main)", "Bash", {"command": "git push origin main"}, True, True),
    ("Bash(* --help *)", "Bash", {"command": "npm --help"}, False, True),
    ("Bash(curl http://a.b/:*)", "Bash", {"command": "curl http://a.b/c"}, False, True),
    ("Bash(find *)", "Bash", {"command": "find . -name x"}, True, True),
    ("Bash(find *)", "Bash", {"command": "find . '-exec' rm '{}' +"}, False, True),
    ("Bash(find:*)", "Bash", {"command": "find . -delete"}, False, True),
    ("Read", "Read", {"file_path": "/x"}, True, True),
    ("Read", "Grep", {"pattern": "x"}, True, True),
    ("Read", "Edit", {"file_path": "/x"}, False, False),
    ("Read(~/.zshrc)", "Read", {"file_path": "/home/me/.zshrc"}, True, True),
    ("Read(~/.zshrc)", "Read", {"file_path": "~/.zshrc"}, True, True),
    ("Read(~/.zshrc)", "Read", {"file_path": "../.zshrc"}, True, True),
    ("Read(~/.zshrc)", "Read", {"file_path": ".zshrc"}, False, False),
    ("Read(~/.ssh/**)", "Read", {"file_path": "/home/me/x/../.ssh/k"}, True, True),
    ("Read(~/.ssh/**)", "Read", {"file_path": "~root/k"}, False, True),
    ("Read(~/.ssh/**)", "Read", {"file_path": " /home/me/.ssh/k"}, False, True),
    ("Read(~/.ssh/**)", "Read", {"file_path": "file:///home/me/.ssh/k"}, False, True),
    ("Read(~/.ssh/**)", "Grep", {"pattern": "x", "path": "~/.ssh"}, True, True),
    ("Read(~/.ssh/**)", "Read", {"paths": ["x", "/home/me/.ssh/k"]}, False, True),
    ("Read(//etc/passwd)", "Read", {"file_path": "/etc/passwd"}, True, True),
    ("Read(//etc/passwd)", "Read", {"file_path": "/etc/shadow"}, False, False),
    ("Read(//etc)", "LS", {"path": "/etc/ssl"}, True, True),
    ("Read(/etc/passwd)", "Read", {"file_path": "/etc/passwd"}, False, True),
    ("Edit(/src/**)", "Edit", {"file_path": "src/a/b.py"}, True, True),
    ("Edit(/src/**)", "Write", {"file_path": f"{CWD}/src/a"}, True, True),
    ("Edit(/src/**)", "MultiEdit", {"file_path": "/src/a"}, False, True),
    ("Edit(/src/**)", "NotebookEdit", {"notebook_path": "src/a.ipynb"}, True, True),
    ("Edit(/src/**)", "Edit", {"file_path": "v/src/a"}, False, False),
    ("Edit(src/**)", "Edit", {"file_path": "v/src/a"}, False, True),
    ("Edit(src/**)", "Edit", {"file_path": "src"}, False, True),
    ("Edit(src/**)", "Edit", {"file_path": "srcs/a"}, False, False),
    ("Edit(**/src/**)", "Edit", {"file_path": "v/src/a"}, True, True),
    ("Edit(src/*.py)", "Edit", {"file_path": "src/a.py"}, True, True),
    ("Edit(src/*.py)", "Edit", {"file_path": "src/a/b.py"}, False, False),
    ("Edit(src/?.py)", "Edit", {"file_path": "src/ab.py"}, False, False),
    ("Edit(src/[a-c].py)", "Edit", {"file_path": "src/b.py"}, True, True),
    ("Edit(src/[!a-c].py)", "Edit", {"file_path": "src/b.py"}, False, False),
    ("Edit(app/[id].tsx)", "Edit", {"file_path": "app/[id].tsx"}, False, True),
    ("Edit(a (2)/**)", "Edit", {"file_path": "a (2)/b"}, True, True),
    ("Read(./.env)", "Read", {"file_path": ".env"}, True, True),
    ("Read(./.env)", "Read", {"file_path": "a/.env"}, False, True),
    ("Read(.env)", "Read", {"file_path": "a/b/.env"}, True, True),
    ("Read(.env)", "Read", {"file_path": "../.env"}, False, True),
    ("Read(.env)", "Read", {"file_path": ".envrc"}, False, False),
    ("Read(.env.*)", "Read", {"file_path": "a/.env.local"}, True, True),
    ("Read(./secrets/**)", "Read", {"file_path": "secrets/a/b"}, True, True),
    ("Read(./secrets/**)", "Glob", {"pattern": "secrets/*"}, False, True),
    ("Read(./secrets/**)", "Glob", {"pattern": "{a,secrets}/*"}, False, True),
    ("Read(./secrets/**)", "Grep", {"pattern": "x", "path": "secrets"}, True, True),
    ("Read(**/*.pem)", "Read", {"file_path": "a/b.pem"}, True, True),
    ("Read(**/*.pem)", "Read", {"file_path": "/etc/b.pem"}, False, True),
    ("Read(*)", "Read", {"file_path": "a/b"}, True, True),
    ("Read(*)", "Grep", {"pattern": "x"}, False, True),
    ("Read(**)", "Read", {"file_path": "/etc/x"}, False, True),
    (
        "WebFetch(domain:example.com)",
        "WebFetch",
        {"url": "https://example.com"},
        True,
        True,
    ),
    (
        "WebFetch(domain:example.com)",
        "WebFetch",
        {"url": "http://EXAMPLE.com:80/x"},
        True,
        True,
    ),
    (
        "WebFetch(domain:Example.com.)",
        "WebFetch",
        {"url": "https://example.com./"},
        True,
        True,
    ),
    (
        "WebFetch(domain:example.com)",
        "WebFetch",
        {"url": "https://a.example.com"},
        False,
        False,
    ),
    (
        "WebFetch(domain:example.com)",
        "WebFetch",
        {"url": "https://example.com.evil.org"},
        False,
        False,
    ),
    (
        "WebFetch(domain:example.com)",
        "WebFetch",
        {"url": "https://evil.org/example.com"},
        False,
        False,
    ),
    (
        "WebFetch(domain:example.com)",
        "WebFetch",
        {"url": "https://u:p@example.com/"},
        False,
        True,
    ),
    (
        "WebFetch(domain:example.com)",
        "WebFetch",
        {"url": "https://example.com@evil.org/"},
        False,
        False,
    ),
    (
        "WebFetch(domain:example.com)",
        "WebFetch",
        {"url": "https://example.com\\@evil.org/"},
        False,
        True,
    ),
    (
        "WebFetch(domain:example.com)",
        "WebFetch",
        {"url": "https:\texample.com"},
        False,
        True,
    ),
    (
        "WebFetch(domain:example.com)",
        "WebFetch",
        {"url": "https://ex%61mple.com/"},
        False,
        True,
    ),
    ("WebFetch(domain:example.com)", "WebFetch", {"url": "example.com/x"}, False, True),
    (
        "WebFetch(domain:*.example.com)",
        "WebFetch",
        {"url": "https://a.b.example.com/"},
        True,
        True,
    ),
    (
        "WebFetch(domain:*.example.com)",
        "WebFetch",
        {"url": "https://example.com/"},
        False,
        False,
    ),
    (
        "WebFetch(domain:example.*)",
        "WebFetch",
        {"url": "https://example.evil.com"},
        False,
        False,
    ),
    ("WebFetch(https://a.b/*)", "WebFetch", {"url": "https://a.b/c"}, True, True),
    ("WebSearch", "WebSearch", {"query": "x"}, True, True),
    ("Task", "Agent", {"subagent_type": "x"}, True, True),
    ("Agent", "Task", {"subagent_type": "x"}, True, True),
    ("Task(Explore)", "Agent", {"subagent_type": "Explore"}, True, True),
    ("Agent(Explore)", "Task", {"subagent_type": "Explore"}, True, True),
    ("Agent(Explore)", "Agent", {"subagent_type": "explore"}, False, True),
    ("Agent(Explore)", "Agent", {"subagent_type": "Explorer"}, False, False),
    ("Agent(subagent_type:Explore)", "Agent", {"subagent_type": "Explore"}, True, True),
    ("KillShell", "TaskStop", {"task_id": "s1"}, True, True),
    ("TaskStop", "KillShell", {"shell_id": "s1"}, True, True),
    ("KillBash", "KillShell", {"shell_id": "s1"}, True, True),
    ("TaskStop(task_id=s1)", "KillShell", {"shell_id": "s1"}, True, True),
    ("KillShell(shell_id=s1)", "KillShell", {"shell_id": "s1"}, True, True),
    ("KillShell(shell_id=s1)", "TaskStop", {"task_id": "s1"}, True, True),
    ("BashOutput", "TaskOutput", {"task_id": "s1"}, True, True),
    ("AgentOutputTool", "TaskOutput", {"task_id": "s1"}, True, True),
    ("mcp__github", "mcp__github__get_issue", {}, True, True),
    ("mcp__github", "mcp__github2__get_issue", {}, False, False),
    ("mcp__github__*", "mcp__github__get_issue", {}, True, True),
    ("mcp__github__get_issue", "mcp__github__get_issue", {}, True, True),
    ("mcp__github__get_issue", "mcp__github__get_issues", {}, False, False),
    ("mcp__a__b(x=1*)", "mcp__a__b", {"x": "12"}, True, True),
    ("Skill(commit)", "Skill", {"skill": "commit"}, True, True),
    ("Skill(commit)", "Skill", {"skill": "commit", "args": "-a"}, False, True),
    ("Skill(commit *)", "Skill", {"skill": "commit", "args": "-a"}, True, True),
    ("Skill(a:b)", "Skill", {"skill": "a:b"}, True, True),
    ("SlashCommand(/fix:*)", "SlashCommand", {"command": "/fix 3"}, True, True),
    ("Bash(rm:*)", "TaskWrite", {"task_id": "s1", "text": "rm -rf x\n"}, False, True),
    ("Bash(rm:*)", "TaskWrite", {"task_id": "s1", "text": "ls\n"}, False, False),
    ("Bash", "TaskWrite", {"task_id": "s1", "text": "ls\n"}, False, False),
    ("TodoWrite", "TodoWrite", {}, True, True),
    ("ExitPlanMode", "ExitPlanMode", {}, True, True),
    ("Deploy(to= test )", "Deploy", {"to": " test "}, True, True),
]


@pytest.mark.parametrize(("text", "tool", "input", "allowed", "denied"), CALLS)
def test_a_rule_means_what_settings_files_mean_by_it(
    text: str, tool: str, input: dict[str, Any], allowed: bool, denied: bool
) -> None:
    """PM1: allowing is strict, denying is wide."""
    assert means("allow", text, tool, **input) == allowed
    assert means("deny", text, tool, **input) == denied
    assert Rule("ask", text).matches(tool, input, CWD) == denied


@pytest.mark.parametrize(
    ("text", "input", "denied"),
    [
        ("Bash(run_in_background:true)", {"run_in_background": True}, True),
        ("Bash(run_in_background:true)", {"run_in_background": False}, False),
        ("Bash(run_in_background:true)", {}, False),
        ("Bash(timeout : 6*)", {"timeout": 600}, True),
        ("Bash(cwd:/tmp*)", {"cwd": "/tmp/x"}, True),
    ],
)
def test_an_argument_can_be_denied_but_makes_no_call_safe(
    text: str, input: dict[str, Any], denied: bool
) -> None:
    """PM1."""
    call = {"command": "make"} | input
    assert Rule("deny", text).matches("Bash", call, CWD) == denied
    with pytest.raises(ValueError, match="one argument does not make a call safe"):
        Rule("allow", text)


REFUSED = [
    ("bash", '"Bash"'),
    ("BASH(rm:*)", '"Bash(rm:*)"'),
    ("webfetch(domain:a.b)", '"WebFetch(domain:a.b)"'),
    ("multiedit", '"MultiEdit"'),
    ("Killshell", '"KillShell"'),
    ("task(Explore)", '"Task(Explore)"'),
    (" Bash", '"Bash"'),
    ("Bash (ls)", '"Bash(ls)"'),
    ("Bash( ls)", "Bash(ls), without the blanks"),
    ("Read(~/x )", "Read(~/x), without the blanks"),
    ("Bash(npm run test: *)", "Bash(npm run test:*)"),
    ("Bash(git:* push)", "Bash(git * push)"),
    ("Bsh(rm *)", "Bash may be meant: write Bash(rm *)"),
    ("Shell(rm *)", "Bash may be meant: write Bash(rm *)"),
    ("Raed(.env)", "Read may be meant: write Read(.env)"),
    ("Agnet(x)", "Agent may be meant: write Agent(x)"),
    ("Bash(:*)", "write Bash for all calls"),
    ("Bash()", "write Bash for all calls"),
    ("Bash( )", "write Bash for all calls"),
    ("Bash(", "not closed"),
    ("Bash(ls", "not closed"),
    ("", "a rule is TOOL"),
    ("Bash(command:rm *)", "write Bash(rm *)"),
    ("Bash(command=rm *)", "write Bash(rm *)"),
    ("Read(file_path:.env)", "write Read(.env)"),
    ("WebFetch(url:https://a.b)", "write WebFetch(https://a.b)"),
    ("WebFetch(example.com)", "write WebFetch(domain:example.com)"),
    ("WebFetch(domain:https://a.b/c)", "write WebFetch(domain:a.b)"),
    ("WebFetch(domain:a.b:80)", "write WebFetch(domain:a.b)"),
    ("WebFetch(domain:)", "WebFetch(domain:example.com)"),
    ("Read(!.env)", "takes nothing back"),
    ("Edit(src/*.{ts,tsx})", "a rule for each"),
    ("Edit(src/[ab)", r"write \["),
    ("Read(~bob/x)", "//home/NAME"),
    ("Read($HOME/x)", "~/PATH"),
    ("Read(C:\\x)", "//PATH"),
    ("Agent(Explore, Plan)", "Agent(Explore)"),
    ("Bash, Read", "a rule for each tool"),
    ("Cd(~/x)", "Agent.cwd"),
    ("TodoWrite(x)", "TodoWrite(ARGUMENT=x)"),
    ("PowerShell(ls *)", "PowerShell(ARGUMENT=ls *)"),
    ("Stop Task", "a rule is TOOL"),
    ('prefix_rule(pattern=["git"], decision="allow")', "Bash(git status:*)"),
]


@pytest.mark.parametrize(("text", "right"), REFUSED)
@pytest.mark.parametrize("effect", ["allow", "deny", "ask"])
def test_what_is_no_rule_is_refused_with_what_to_write(
    effect: Literal["allow", "deny", "ask"], text: str, right: str
) -> None:
    """PM1: never in silence."""
    with pytest.raises(ValueError, match=re.escape(repr(text))) as caught:
        Rule(effect, text)
    assert right in str(caught.value)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("Bash(cd * && make)", "a rule for each"),
        ("Bash(FOO=* make)", "one simple command"),
        ("Bash(ls | grep *)", "a rule for each"),
        ("Bash(make > *)", "without `*`"),
        ("WebFetch(https://a.b*)", "WebFetch(domain:HOST)"),
        ("WebFetch(*)x", "a rule is TOOL"),
    ],
)
def test_what_could_allow_nothing_is_refused(text: str, right: str) -> None:
    """PM1."""
    with pytest.raises(ValueError, match=re.escape(right)):
        Rule("allow", text)


SEVERAL = [
    ("Read(./secrets/**), Read(.env)", "Read(./secrets/**), and Read(...)"),
    ("Read(.env),Edit(b)", "Read(.env), and Edit(...)"),
    ("Bash(rm *), Bash(curl *)", "Bash(rm *), and Bash(...)"),
    ("Bash(rm *) bash(curl *)", "separate texts"),
    ("Bash(rm *), Read", "separate texts"),
    ("mcp__a|mcp__b", "separate texts"),
    ("Bash(sudo:*, su:*)", "Bash(sudo:*) and Bash(su:*)"),
    ("Bash(rm:*|sudo:*)", "Bash(rm:*) and Bash(sudo:*)"),
    ("Bash(dd *|mkfs *)", "Bash(dd *) and Bash(mkfs *)"),
    ("Bash(rm *, curl *)", "Bash(rm *) and Bash(curl *)"),
    ("Bash(rm *,curl *)", "Bash(rm *) and Bash(curl *)"),
    ("Bash(rm *))", "write Bash(rm *)"),
    ("Bash(rm:*:*)", "write Bash(rm:*)"),
    ("Read(.env, secrets/**)", "Read(.env) and Read(secrets/**)"),
    ("Read(.env|secrets/**)", "Read(.env) and Read(secrets/**)"),
    ("Read(.env ./secrets/**)", "Read(.env) and Read(./secrets/**)"),
    ("Edit(a;b)", "Edit(a) and Edit(b)"),
    ('Read(".env")', "write Read(.env)"),
    ("Read('.env')", "write Read(.env)"),
    ("Agent(Explore|Plan)", "Agent(Explore) and Agent(Plan)"),
    ("Agent(Explore:*)", "write Agent(Explore)"),
    ("Skill(a, b)", "Skill(a)"),
    ("WebFetch(domain:a.b, domain:c.d)", "write WebFetch(domain:a.b"),
    ("WebFetch(https://a.b/*, https://c.d/*)", "WebFetch(https://a.b/*) and"),
    ("WebFetch(domains:evil.biz)", "write WebFetch(domain:evil.biz)"),
    ("WebFetch(domain=evil.biz)", "write WebFetch(domain:evil.biz)"),
]


@pytest.mark.parametrize(("text", "right"), SEVERAL)
@pytest.mark.parametrize("effect", ["allow", "deny", "ask"])
def test_several_rules_in_one_text_are_refused_rather_than_deny_nothing(
    effect: Literal["allow", "deny", "ask"], text: str, right: str
) -> None:
    """PM1: they would be one rule, about a call that nobody makes."""
    with pytest.raises(ValueError, match=re.escape(repr(text))) as caught:
        Rule(effect, text)
    assert right in str(caught.value)


@pytest.mark.parametrize(
    ("effect", "text", "tool", "input"),
    [
        ("allow", "Bash(ls|wc)", "Bash", {"command": "ls|wc"}),
        ("allow", "Bash(echo a, b)", "Bash", {"command": "echo a, b"}),
        ("allow", "Bash(git log --format=%h,%s *)", "Bash", {}),
        ("deny", "Bash(git log --format=%h,%s *)", "Bash", {}),
        ("deny", "Bash(curl * | sh)", "Bash", {"command": "curl x | sh"}),
        ("deny", "Bash(curl *|bash)", "Bash", {"command": "curl x|bash"}),
        ("deny", "Bash(grep 'a|b, c' *)", "Bash", {"command": "grep 'a|b, c' x"}),
        ("deny", "Bash(:(){ :|:& };:)", "Bash", {"command": ":(){ :|:& };:"}),
        ("deny", "Bash(a || b)", "Bash", {"command": "a || b"}),
        ("deny", "Read(**/*\\,v)", "Read", {"file_path": "x/a,v"}),
        ("deny", "Read(a[,;]b)", "Read", {"file_path": "a,b"}),
        ("deny", "Read(My Documents/**)", "Read", {"file_path": "My Documents/x"}),
        ("deny", "Skill(review a, b)", "Skill", {"skill": "review", "args": "a, b"}),
        ("allow", "Bash(timeout:*)", "Bash", {"command": "timeout 5 make"}),
        ("deny", "Bash(timeout:*)", "Bash", {"command": "timeout 5 make"}),
        ("deny", "Mcp*", "McpX", {}),
        ("deny", "Kill*", "TaskStop", {"task_id": "s1"}),
        ("deny", "mcp__*", "mcp__a__b", {}),
        ("ask", "*", "Bash", {"command": "x"}),
    ],
)
def test_what_only_looks_like_several_rules_is_one(
    effect: Literal["allow", "deny", "ask"],
    text: str,
    tool: str,
    input: dict[str, Any],
) -> None:
    """PM1."""
    call = input or {"command": "git log --format=%h,%s x"}
    assert Rule(effect, text).matches(tool, call, CWD)


@pytest.mark.parametrize(
    "text", ["mcp__*", "B*", "**", "mcp__*__get", "mcp__git*", "mcp__g*__x", "*Edit"]
)
def test_a_name_that_allows_holds_a_star_behind_a_server_only(text: str) -> None:
    """PM1: else it allows what nobody has named."""
    with pytest.raises(ValueError, match="nobody has named"):
        Rule("allow", text)
    Rule("deny", text)
    assert Rule("allow", "mcp__git__get_*").matches("mcp__git__get_x", {})
    # For programs, and nowhere in a file.
    assert Rule("allow", "*").matches("Bash", {"command": "x"})


@pytest.mark.parametrize("effect", ["deny", "ask"])
@pytest.mark.parametrize(
    "text", ["Read(.env)", "Grep(.env)", "Edit(.env)", "Write(.env)"]
)
def test_what_denies_a_path_does_so_for_every_tool_that_could_do_it(
    effect: Literal["deny", "ask"], text: str
) -> None:
    """PM1: what must not be read is not to be written either."""
    rule = Rule(effect, text)
    for tool in ("Edit", "Write", "MultiEdit"):
        assert rule.matches(tool, {"file_path": f"{CWD}/.env"}, CWD)
        assert not rule.matches(tool, {"file_path": f"{CWD}/a"}, CWD)
    assert rule.matches("NotebookEdit", {"notebook_path": ".env"}, CWD)
    reads = text.startswith(("Read", "Grep"))
    assert rule.matches("Read", {"file_path": ".env"}, CWD) == reads
    assert not Rule("allow", text.replace("Edit", "Read")).matches(
        "NotebookEdit", {"notebook_path": ".env"}, CWD
    )


def test_a_denial_may_speak_of_several_commands() -> None:
    """PM1."""
    for command in ("curl x | sh", "true; curl x | sh", "curl  x  |  sh && ls"):
        assert means("deny", "Bash(curl * | sh)", "Bash", command=command)
    assert not means("deny", "Bash(curl * | sh)", "Bash", command="curl x; sh")


def test_a_slash_begins_where_the_settings_file_belongs() -> None:
    """PM1."""
    rule = Rule("allow", "Edit(/src/**)", root="/srv/project")
    assert rule.matches("Edit", {"file_path": "/srv/project/src/a"}, CWD)
    assert not rule.matches("Edit", {"file_path": "src/a"}, CWD)
    rule = Rule("deny", "Read(src/**)", root="/srv/project")
    assert rule.matches("Read", {"file_path": "/srv/project/src/a"}, CWD)
    assert rule.matches("Read", {"file_path": "src/a"}, CWD)
    with pytest.raises(ValueError, match="root must be an absolute path"):
        Rule("deny", "Read(src/**)", root="project")


def test_a_link_is_allowed_by_both_of_its_ends_and_denied_by_either() -> None:
    """PM1."""
    real = {
        f"{CWD}/src/link/a": "/out/a",
        f"{CWD}/src/b": f"{CWD}/src/b",
        CWD: CWD,
    }

    def matches(effect: Literal["allow", "deny"], text: str, path: str) -> bool:
        return Rule(effect, text).matches("Edit", {"file_path": path}, CWD, real=real)

    assert matches("allow", "Edit(src/**)", "src/b")
    assert not matches("allow", "Edit(src/**)", "src/link/a")
    assert not matches("allow", "Edit(//out/**)", "src/link/a")
    # Nobody could see where it leads.
    assert not matches("allow", "Edit(src/**)", "src/c")
    assert matches("deny", "Edit(//out/**)", "src/link/a")
    assert matches("deny", "Edit(src/**)", "src/link/a")
    # The rule itself names a link.
    real |= {f"{HOME}/keys": "/mnt/keys", "/mnt/keys/k": "/mnt/keys/k"}
    assert f"{HOME}/keys" in Rule("deny", "Edit(~/keys/**)").places("Edit", CWD)
    assert matches("deny", "Edit(~/keys/**)", "/mnt/keys/k")


@pytest.mark.parametrize(
    "command",
    [
        "sudo " * 26_000,
        "$(" * 60_000,
        '"$(' * 40_000,
        "bash -c '" * 14_000,
        "${" * 60_000,
        "`" * 130_000,
        "<<a\n" * 30_000,
        "{" * 130_000,
        "case a in " * 13_000,
        "(" * 130_000,
        "env a='" * 18_000,
        "$'\\x" * 30_000,
        "eval a=b'c' " * 10_000,
        "\\" * 131_000,
    ],
)
def test_the_time_that_a_denial_takes_goes_with_the_length(command: str) -> None:
    """P9."""
    rule = Rule("deny", "Bash(rm * a * b * c)")
    began = time.process_time()
    rule.matches("Bash", {"command": command}, CWD)
    assert time.process_time() - began < 5


def test_the_time_for_a_path_goes_with_its_length() -> None:
    """P9."""
    texts = ["Read(**/*a*b*a*b*a*b*c)", "Read(**/a/**/a/**/a/**/b)"]
    began = time.process_time()
    for text in texts:
        for path in ("ab" * 2_000, "a/" * 2_000, "a/" * 50_000):
            means("deny", text, "Read", file_path=path)
            means("allow", text, "Read", file_path=path)
    means("deny", texts[0], "Glob", pattern="{a,b}" * 20_000)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("rule", "tool", "arguments", "matches"),
    [
        ("Skill(deploy)", "Skill", {"skill": ""}, False),
        ("Skill(deploy)", "Skill", {"skill": " "}, False),
        ("Skill(deploy)", "Skill", {"skill": "deploy", "args": [["x"]]}, True),
        ("Task(model:5)", "Task", {"model": 10**5000}, True),
        ("Task(model:5)", "Task", {"model": -(10**5000)}, True),
    ],
)
def test_whatever_a_model_makes_up_is_judged_without_a_failure(
    rule: str, tool: str, arguments: dict[str, Any], matches: bool
) -> None:
    """PM1: of what nobody can read a denial speaks, and no permission does."""
    assert Rule("deny", rule).matches(tool, arguments) is matches
    if tool == "Skill":
        assert not Rule("allow", rule).matches(tool, arguments)
