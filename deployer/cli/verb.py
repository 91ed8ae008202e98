"""What all verbs have in common on the command line: `--json`, and hosts by name, by list or by group."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, cast, get_type_hints

import typer

from deployer.cli import fleet, roll
from deployer.cli.host import choices, complete_host, complete_hosts
from deployer.cli.report import report
from deployer.errors import UsageError
from deployer.inventory.load import load, members, names

Verb = Callable[..., None]


def _groups(incomplete: str) -> list[str]:
    found = {group for name in names() for group in load(name).groups}
    return sorted(group for group in found if group.startswith(incomplete))


def complete_group(incomplete: str) -> list[str]:
    """Names for the shell."""
    try:
        return _groups(incomplete)
    except UsageError:
        return []


Json = Annotated[bool, typer.Option("--json", help="one JSON document on stdout; what people read goes to stderr")]
MaybeHost = Annotated[
    str | None,
    typer.Argument(metavar="HOST", help="a name in inventory/, or a .toml file", autocompletion=complete_host),
]
On = Annotated[
    str | None,
    typer.Option("--on", metavar="A,B", help="several hosts in place of HOST", autocompletion=complete_hosts),
]
Group = Annotated[
    str | None,
    typer.Option("--group", metavar="NAME", help="all hosts of a group", autocompletion=complete_group),
]
Parallel = Annotated[int, typer.Option("--parallel", min=1, help="how many of several hosts at the same time")]


def add(
    app: typer.Typer,
    verb: Verb,
    *,
    name: str | None = None,
    prefix: str = "",
    title: str = "",
    several: bool = True,
) -> None:
    """Registers a verb. `several` says that it may be asked of more than one host; it then gets HOST, --on, --group.

    `title` is what it is called where the name on the command line is not. Examples at the end of its docstring come after
    its options in the help.
    """
    word = name or verb.__name__
    title = title or f"{prefix} {word}".strip()
    hints = get_type_hints(verb, include_extras=True)
    own = [p.replace(annotation=hints[p.name]) for p in inspect.signature(verb).parameters.values()]
    several = several and any(p.name == "host" for p in own)

    def called(**given: Any) -> None:
        del given["json"]  # main has seen it already: errors of the command line are JSON too
        report.begin(title, given.get("host"), plan_only=bool(given.get("plan")))
        if not several:
            verb(**given)
            return
        hosts = chosen(given.pop("on"), given.pop("group"), given["host"])
        parallel = given.pop("parallel")
        if hosts is None:
            verb(**given)
            return
        if len(hosts) > 1:
            _a_file_each(own, given)
        call = fleet.Call(title, _options(own, given), local=choices.local)
        if given.get("rolling"):
            roll.run(call, hosts, parallel=parallel, plan_only=bool(given["plan"]))
        else:
            fleet.run(call, hosts, parallel=parallel)

    common = [_option("json", Json, False)]
    if several:
        own = [p.replace(annotation=MaybeHost, default=None) if p.name == "host" else p for p in own]
        common += [_option("on", On, None), _option("group", Group, None), _option("parallel", Parallel, 4)]
    described = cast(Any, called)
    described.__signature__ = inspect.Signature([*own, *common])
    described.__annotations__ = {p.name: p.annotation for p in [*own, *common]}
    described.__name__ = word
    told, epilog = _told(verb)
    app.command(name, help=told, epilog=epilog)(called)


def _told(verb: Verb) -> tuple[str, str | None]:
    """Its help, and its examples as what follows the options: each a paragraph, indented as Markdown's code is."""
    told, _, examples = (inspect.getdoc(verb) or "").partition("\n\nExamples:\n")
    return told, "\n\n".join(["Examples:", *examples.splitlines()]) if examples else None


def _option(name: str, annotation: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def chosen(on: str | None, group: str | None, host: str | None) -> tuple[str, ...] | None:
    """The hosts that were asked for, each once; None when it is the one HOST. UsageError unless it is said one way."""
    if (host is not None) + (on is not None) + (group is not None) != 1:
        raise UsageError(
            "Missing argument 'HOST'" if not (on or group) else "say which hosts one way: HOST, --on or --group",
            where="the command line",
            remedy="ddtree-deploy VERB HOST, or --on A,B, or --group NAME",
        )
    if host is not None:
        return None
    hosts = members(group) if group is not None else tuple(word for word in (on or "").split(",") if word)
    if not hosts:
        raise UsageError("--on names no host", where="--on", remedy="--on A,B")
    return tuple(dict.fromkeys(hosts))


_WRITTEN = ("--file", "--out", "--html")


def _a_file_each(parameters: list[inspect.Parameter], given: dict[str, Any]) -> None:
    """UsageError when several hosts would write one file, each over what another found."""
    named = [p for p in parameters if p.name != "host" and given[p.name] is not None and _flag(p) in _WRITTEN]
    for parameter in named:
        if "{host}" not in str(given[parameter.name]):
            raise UsageError(
                f"several hosts would write one file, {given[parameter.name]}",
                where=_flag(parameter),
                remedy="put {host} into its name: each host's own stands there then",
            )


def _options(parameters: list[inspect.Parameter], given: dict[str, Any]) -> tuple[str, ...]:
    """The verb's own options as words of a command line."""
    words: list[str] = []
    for parameter in parameters:
        value = given[parameter.name]
        if parameter.name == "host" or value == parameter.default:
            continue
        flag = _flag(parameter)
        words += [flag] if value is True else [f"{flag}={value}"]
    return tuple(words)


def _flag(parameter: inspect.Parameter) -> str:
    """Its long name on the command line."""
    [info] = [part for part in parameter.annotation.__metadata__ if hasattr(part, "param_decls")]
    # Typer takes the first name as the option's default when it stands within Annotated.
    named = [info.default, *(info.param_decls or ())]
    return next(str(word) for word in named if str(word).startswith("--"))
