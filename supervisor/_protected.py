"""Which files in an agent's directory are not edited for being there: pure.

What is written in them is run, or says what may be done: by git, by editors, by
shells, by programs for agents.
"""

from __future__ import annotations

from typing import Final

from ._path_patterns import Place, below, every_place, resolve

_DIRECTORIES: Final = frozenset(
    ".git .claude .codex .vscode .idea .husky .devcontainer .cargo .yarn .mvn .ssh"
    " .config".split()
)
_FILES: Final = frozenset(
    ".gitconfig .gitmodules .bashrc .bash_profile .bash_login .bash_aliases .bash_logout"
    " .zshrc .zshenv .zprofile .zlogin .zlogout .profile .kshrc .cshrc .tcshrc .envrc"
    " .npmrc .yarnrc .yarnrc.yml .pnp.cjs .pnp.loader.mjs .pnpmfile.cjs .bazelrc"
    " .bazelversion .bazeliskrc .pre-commit-config.yaml .ripgreprc .mcp.json"
    " .claude.json lefthook.yml lefthook.yaml .lefthook.yml .lefthook.yaml"
    " gradle-wrapper.properties maven-wrapper.properties".split()
)


def protected_part(path: object, place: Place) -> str | None:
    """Return the protected name that a path in a call goes through, by its name or by
    where it leads; None if there is none."""
    if not isinstance(path, str):
        return None
    homes = [resolve(place.cwd or ".", None)]
    if (real := place.follow(homes[0])) is not None:
        homes.append(real)
    for one in every_place(path, place) or []:
        inside = [names for home in homes if (names := below(one, home)) is not None]
        # An agent may itself live in such a directory, in a worktree of it.
        for name in inside[-1] if inside else one.split("/"):
            if name.lower() in _DIRECTORIES or name.lower() in _FILES:
                return name
    return None
