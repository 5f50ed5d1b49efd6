"""Keys: who may be sent one, what is said of it, and what a file of settings may not do."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from helpers import qaeval, run_locally, write_parquet
from hostile_server import Asked, HostileServer, completion, response
from naco_jobs import TWO_STEPS, many, settings
from qaeval_core.configure import load_config
from qaeval_core.errors import ConfigError
from qaeval_core.llm.client import ChatClient, Endpoint
from qaeval_core.llm.key import ApiKey
from qaeval_core.planning.compile import check_key_use, plan_chat

KEY = "sk-test-93bd7f01c5e84aa2"
FAR = "http://10.255.255.1:9/v1"
MESSAGES = [{"role": "user", "content": "Who?"}]


def key_file(path: Path, *, mode: int = 0o600) -> Path:
    """Return a file with the key."""
    path.write_text(KEY)
    path.chmod(mode)
    return path


def words(folder: Path, base_url: str, *more: str) -> list[str | Path]:
    """Return a command that asks for two rows."""
    source = write_parquet(folder / "input.parquet", many(2))
    given = [f"base_url={base_url}", "model=m", "expected_complexity=2"]
    given += [f"ledger_path={folder / 'ledgers'}", *more]
    settings = [word for setting in given for word in ("--set", f"naco.{setting}")]
    return ["score", source, "--out", folder / "out", "--metrics", "naco", "--local", *settings]


def test_a_key_is_said_where_it_goes_and_is_in_no_file_though_it_is_echoed(tmp_path: Path) -> None:
    """It stood in journal, families, scores and page, and nothing said to whom it went."""
    said = TWO_STEPS.replace("Ann", f"Ann {KEY}").replace("1. a", f"1. {KEY}")
    with HostileServer(lambda _: [response(completion(said))]) as server:
        path = key_file(tmp_path / "key")
        output = qaeval(*words(tmp_path, server.base_url, f"api_key_file={path}"))
        assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
        host = server.base_url.split("/")[2]
    assert output.count(f"note: the key from the file {path} goes to {host}\n") == 1
    page = tmp_path / "page.html"
    output += qaeval("explain", tmp_path / "out", "--row", "input.parquet:0", "--html", page)
    path.unlink()
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert "&lt;key&gt;" in page.read_text()
    assert not [file for file in files if KEY.encode() in file.read_bytes()]
    assert KEY not in output


@pytest.mark.parametrize(
    ("base_url", "mode", "said"),
    [
        (FAR, 0o600, "10.255.255.1 in clear"),
        ("http://127.0.0.1.example.org/v1", 0o600, "in clear"),
        ("http://localhost:9/v1", 0o644, "(mode 0644): chmod 600"),
        ("https://host/v1", 0o640, "(mode 0640): chmod 600"),
    ],
)
def test_what_would_show_a_key_to_others_is_refused(
    tmp_path: Path, base_url: str, mode: int, said: str
) -> None:
    """A key that others can read, on the disk or on the wire, is theirs as well."""
    path = key_file(tmp_path / "key", mode=mode)
    given = {"naco.base_url": base_url, "naco.api_key_file": str(path)}
    with pytest.raises(ConfigError) as refused:
        check_key_use(load_config(overrides=given))
    assert said in str(refused.value)
    assert len(check_key_use(load_config(overrides={**given, "naco.allow_insecure": True}))) == 1


@pytest.mark.parametrize(
    ("verb", "base_url", "mode", "said"),
    [
        ("score", FAR, 0o600, "10.255.255.1 in clear"),
        ("calibrate", "http://127.0.0.1:9/v1", 0o644, "(mode 0644): chmod 600"),
    ],
)
def test_it_is_refused_before_anything_starts(
    tmp_path: Path, verb: str, base_url: str, mode: int, said: str
) -> None:
    """Protects from minutes of exports before a bad request is called that."""
    path = key_file(tmp_path / "key", mode=mode)
    command = words(tmp_path, base_url, f"api_key_file={path}")
    if verb == "calibrate":
        command = ["calibrate", command[1], "--corpus", "c", *command[6:]]
        command += ["--out", tmp_path / "c.json", "--column", "references=question"]
        command = [word for word in command if word != "--local"]
    else:
        command += ["--set", f"models.artifacts_path={tmp_path / 'models'}"]
    output = qaeval(*command, expect=2)
    assert said in output and "--set naco.allow_insecure=true" in output
    assert "Traceback" not in output and KEY not in output
    assert not (tmp_path / "out").exists()


def test_what_is_allowed_changes_no_name_of_a_result(tmp_path: Path) -> None:
    """A setting of safety in a signature would ask and pay for all replies again."""
    path = key_file(tmp_path / "key", mode=0o644)
    given = {"naco.base_url": FAR, "naco.model": "m", "naco.expected_complexity": 2}
    given |= {"naco.api_key_file": str(path), "output.path": str(tmp_path / "out")}
    strict, lax = (
        load_config(overrides={**given, "naco.allow_insecure": allow, "naco.proxy": proxy})
        for allow, proxy in ((False, None), (True, "http://proxy:3128"))
    )
    with pytest.raises(ConfigError, match="QA0602"):
        check_key_use(strict)
    assert check_key_use(lax) == [
        f"the key from the file {path} goes to 10.255.255.1:9, through the proxy proxy:3128"
    ]
    plans = [plan_chat("naco", config, columns={})["naco"] for config in (strict, lax)]
    assert plans[0].key == plans[1].key
    assert plans[0].options == plans[1].options


@pytest.mark.parametrize(
    ("allow", "n_asked"), [({}, 0), ({"naco.allow_insecure": True}, 2)], ids=["no", "yes"]
)
def test_nodes_that_call_look_again(tmp_path: Path, allow: dict[str, object], n_asked: int) -> None:
    """The file of a node is another one than the driver's."""
    path = key_file(tmp_path / "key", mode=0o604)
    with HostileServer(lambda _: [response(completion(TWO_STEPS))]) as server:
        job = settings(server, tmp_path, many(2), naco__api_key_file=str(path))  # type: ignore[arg-type]
        outcome, _ = run_locally({**job, **allow})
        assert len(server.asked) == n_asked
    assert ("mode 0604" in "".join(outcome.stopped.values())) == (n_asked == 0)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_key_file_that_is_no_file_holds_up_nothing(tmp_path: Path, kind: str) -> None:
    """A pipe that nobody writes into is waited for until the end of the world."""
    path = {"pipe": tmp_path / "pipe", "device": Path("/dev/zero"), "folder": tmp_path}[kind]
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(ConfigError, match="QA0602"):
        ApiKey.read(path=path)


YAML = """
metrics:
  naco:
    base_url: https://evil.example/v1
    model: m
    expected_complexity: 2
    allow_insecure: true
    api_key_file: {path}
"""


def test_a_file_of_settings_sends_no_secret_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``api_key_file: ~/.ray/auth_token`` beside a base_url sent that token there."""
    home, given = tmp_path / "home", tmp_path / "given"
    (home / ".ray").mkdir(parents=True)
    given.mkdir()
    key_file(home / ".ray" / "auth_token")
    key_file(given / "key")
    (given / "link").symlink_to(home / ".ray" / "auth_token")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(given)
    config = given / "config.yaml"
    for path in ("~/.ray/auth_token", f"{given}/../home/.ray/auth_token", "./link", "/dev/stdin"):
        config.write_text(YAML.format(path=path))
        with pytest.raises(ConfigError, match="--set.*naco.api_key_file=FILE.*QA0210"):
            load_config(path=config)
        # The command's own words are one's own.
        for told in ({"naco.api_key_file": path}, {"naco.allow_insecure": True}):
            assert load_config(path=config, overrides=told)
        with pytest.raises(ConfigError, match="QA0210"):
            load_config(path=config, overrides={"naco.model": "n", "naco.allow_insecure": False})
    for path in ("./key", str(given / "key")):
        config.write_text(YAML.format(path=path))
        assert load_config(path=config)


def test_a_file_of_settings_that_sends_a_secret_is_a_bad_request(tmp_path: Path) -> None:
    """Refused before a model is exported or anything is sent, and said in words."""
    secret = key_file(tmp_path / "auth_token")
    (tmp_path / "given").mkdir()
    config = tmp_path / "given" / "config.yaml"
    config.write_text(YAML.format(path=secret))
    source = write_parquet(tmp_path / "input.parquet", many(2))
    output = qaeval("score", source, "--out", tmp_path / "out", "--config", config, expect=2)
    assert "[QA0210]" in output and "Traceback" not in output


def test_no_proxy_of_the_environment_sees_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that someone set on a node sent the key through whatever it named."""

    def ask(base_url: str, proxy: str | None) -> object:
        client = ChatClient(
            Endpoint(base_url, "m", {"max_tokens": 9}), ApiKey(KEY, source="here"), proxy=proxy
        )
        return asyncio.run(client.complete(MESSAGES))

    def answer(_: Asked) -> list[bytes]:
        return [response(completion("Yes."))]

    with HostileServer(answer) as proxy, HostileServer(answer) as server:
        address = proxy.base_url.removesuffix("/v1")
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, address)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        ask(server.base_url, None)
        assert (len(proxy.asked), len(server.asked)) == (0, 1)
        ask("http://far.example/v1", address)
        assert (len(proxy.asked), len(server.asked)) == (1, 1)
        assert proxy.asked[0].line.startswith("POST http://far.example/v1/chat/completions")
    far = {"naco.base_url": "https://host/v1", "naco.model": "m"}
    assert "HTTP_PROXY is ignored; set " in check_key_use(load_config(overrides=far))[1]
