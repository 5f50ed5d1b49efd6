"""Further fields, a query and headers of requests: sent as said, signed, and no secret shown."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from helpers import qaeval, run_locally, tells, write_parquet
from hostile_server import Asked, HostileServer, completion, response
from naco_jobs import TWO_STEPS, many
from qaeval_core.configure import load_config
from qaeval_core.errors import ConfigError
from qaeval_core.llm.client import Endpoint
from qaeval_core.llm.key import ApiKey, read_headers
from qaeval_core.planning.compile import check_key_use, plan_chat
from qaeval_core.running.chat_asker import budget_of

SECRET = "7f1c-azure-93bd7f01c5e84aa2"
TEAM = "team-of-the-blue-house"
HEADERS = f"# Of the deployment.\napi-key: {SECRET}\n\nX-Team: {TEAM}\n"
GOOD = {"judge": "Rating: 4", "naco": TWO_STEPS}
BODY = {"chat_template_kwargs": {"enable_thinking": False}, "seed": 7}


def headers_file(folder: Path, text: str = HEADERS, *, mode: int = 0o600) -> Path:
    path = folder / "headers.txt"
    path.write_text(text)
    path.chmod(mode)
    return path


def job_of(server: HostileServer, folder: Path, metric: str, **given: object) -> dict[str, Any]:
    (folder / "prompt.txt").write_text("Rate it: {candidate}")
    own: dict[str, object] = {"base_url": server.base_url, "model": "m"}
    own["ledger_path"] = str(folder / "ledgers")
    own["journal_path"] = str(folder / "journal")
    own |= {"judge": {"prompt_file": str(folder / "prompt.txt")},
            "naco": {"expected_complexity": 2}}[metric]  # fmt: skip
    return {
        "input.paths": [str(write_parquet(folder / "input.parquet", many(2)))],
        "output.path": str(folder / "out"),
        "scoring.progress_s": 60,
        **{f"{metric}.{key}": value for key, value in {**own, **given}.items()},
    }


@pytest.mark.parametrize("metric", GOOD)
def test_what_is_said_is_sent_and_asked_for_once(
    metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure wants a query and a header, Qwen3 a field; and other fields are another question."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-server-1234")
    path = headers_file(tmp_path)
    given = {"body": BODY, "query": {"api-version": "2024-10-21"}, "headers_file": str(path)}
    with HostileServer(lambda _: [response(completion(GOOD[metric]))]) as server:
        run_locally(job_of(server, tmp_path, metric, **given))
        first = server.asked[0]
        assert first.line.split()[1].endswith("/chat/completions?api-version=2024-10-21")
        assert (first.headers["api-key"], first.headers["x-team"]) == (SECRET, TEAM)
        assert "authorization" not in first.headers  # The variable is another server's.
        sent = json.loads(first.body)
        assert {name: sent[name] for name in BODY} == BODY
        n_asked = len(server.asked)
        again = {**given, "body": dict(reversed(BODY.items()))}
        run_locally(job_of(server, tmp_path, metric, **again) | {
            "output.path": str(tmp_path / "again")})  # fmt: skip
        assert len(server.asked) == n_asked  # Equal fields in another order: from the journal.
        for name, other in (("body", {"seed": 8}), ("query", {"api-version": "2025-01-01"})):
            run_locally(job_of(server, tmp_path, metric, **{**given, name: other}) | {
                "output.path": str(tmp_path / name)})  # fmt: skip
            n_asked += 2
            assert len(server.asked) == n_asked
    signatures = {
        name: json.loads((tmp_path / name / "report.json").read_text())["families"]
        for name in ("out", "again", "body", "query")
    }
    texts = {name: next(iter(own.values()))["signature"] for name, own in signatures.items()}
    assert texts["out"] == texts["again"] and len(set(texts.values())) == 3
    assert "enable_thinking" in texts["out"] and "api-version" in texts["out"]
    assert "headers:x-team" in texts["out"] and "api-key" not in texts["out"]


def test_without_them_no_name_of_a_result_moves(tmp_path: Path) -> None:
    """A journal of a million replies would be paid for again."""
    asked = [{"role": "user", "content": "Who?"}]
    endpoint = Endpoint("http://localhost/v1", "m", {"max_tokens": 9})
    assert endpoint.request_key(asked, run_index=0) == (
        "9705f5a5034795143b349fd0206190d2e904610639aade4993814ef7c04b608a"
    )
    keys = {
        Endpoint("http://localhost/v1", "m", {"max_tokens": 9}, **more).request_key(
            asked, run_index=0
        )
        for more in ({}, {"query": {"a": "b"}}, {"header_names": ("x-team",)})
    }
    assert len(keys) == 3
    given = {"naco.base_url": "https://h/v1", "naco.model": "m", "naco.expected_complexity": 2}
    given |= {"output.path": str(tmp_path / "out")}
    plain, empty = (
        plan_chat("naco", load_config(overrides=own), columns={})["naco"]
        for own in (given, {**given, "naco.body": {}, "naco.query": {}})
    )
    assert plain.key == empty.key
    assert set(plain.options) & {"body", "query", "headers"} == set()


@pytest.mark.parametrize("is_error", [False, True])
def test_values_of_headers_are_in_no_file_and_no_message(tmp_path: Path, is_error: bool) -> None:
    """Neither where the server sends them back, in a reply or in an error."""
    # Of a reply the server's words are its own, but for secrets.
    echo = f"{TWO_STEPS} {SECRET}"

    def answer(_: Asked) -> list[bytes]:
        if is_error:
            said = {"error": {"message": f"no access for {SECRET} of {TEAM}"}}
            return [response(said, status="401 No")]
        return [response(completion(echo.replace("Ann", f"Ann {SECRET}")))]

    path = headers_file(tmp_path)
    with HostileServer(answer) as server:
        job = job_of(server, tmp_path, "naco", headers_file=str(path))
        source, out = job.pop("input.paths")[0], job.pop("output.path")
        words = [word for key, value in job.items() for word in ("--set", f"{key}={value}")]
        command = ("score", source, "--out", out, "--metrics", "naco", "--local", *words)
        said = qaeval(*command, "--dry-run")
        said += qaeval(*command, expect=1 if is_error else 0)
        assert server.asked and server.asked[0].headers["api-key"] == SECRET
        host = server.base_url.split("/")[2]
    assert f"note: the headers in {path} go to {host}\n" in said
    assert "the key of" not in said
    if not is_error:
        said += qaeval("explain", out, "--row", "input.parquet:0", "--html", tmp_path / "page.html")
    path.unlink()
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    for value in (SECRET, TEAM):
        assert not [file for file in files if value.encode() in file.read_bytes()]
        assert value not in said


@pytest.mark.slow
@pytest.mark.ray
def test_values_of_headers_are_not_in_what_ray_is_told(tmp_path: Path) -> None:
    """They go by file: in a description of an actor or a job, others would read them."""
    path = headers_file(tmp_path)
    with HostileServer(lambda _: [response(completion(TWO_STEPS))]) as server:
        job = job_of(server, tmp_path, "naco", headers_file=str(path))
        code = (
            "import glob, json, sys\n"
            "import qaeval.on_ray.cluster as cluster\n"
            "from qaeval.work.score import run_on_ray\n"
            "from qaeval_core.configure import load_config\n"
            "from qaeval_core.planning.job import read_inputs\n"
            "import qaeval_core.scoring.run as run\n"
            "from ray.util import state\n"
            "config = load_config(overrides=json.loads(sys.argv[1]))\n"
            "run_on_ray(config, read_inputs(config))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(job)],
            capture_output=True, text=True, check=False, timeout=300,
            env={**_environment(), "RAY_TMPDIR": str(tmp_path / "r")},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert server.asked[0].headers["api-key"] == SECRET
    assert len(pq.read_table(tmp_path / "out" / "scores" / "input.parquet")) == 2
    path.unlink()
    files = [file for file in tmp_path.rglob("*") if file.is_file() and not file.is_symlink()]
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]
    assert SECRET not in done.stdout + done.stderr


def _environment() -> dict[str, str]:
    import os

    return {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}


def test_values_that_are_no_secrets_change_no_reply(tmp_path: Path) -> None:
    """A title of two words took the answer out of every reply: its F1 was 0."""
    text = "X-Title: Geography Lighthouse\nHTTP-Referer: https://lighthouse.org\nX-Team: keeper\n"
    text += "Authorization: Bearer 7f1c-azure-93bd7f01\nX-Session-Token: the old lighthouse\n"
    said = "The keeper of Geography Lighthouse, https://lighthouse.org"
    path = headers_file(tmp_path, text)
    with HostileServer(lambda _: [response(completion(f"Answer: <ans>{said}</ans>"))]) as server:
        run_locally(job_of(server, tmp_path, "naco", headers_file=str(path)))
        assert server.asked[0].headers["x-title"] == "Geography Lighthouse"
    (file,) = (tmp_path / "out" / "families").rglob("*.parquet")
    assert pq.read_table(file)["answer"].to_pylist() == [[said]] * 2
    key = ApiKey("", source="here", headers=read_headers(path))
    # The last word stands alone only behind the name of a scheme.
    quoted = "7f1c-azure-93bd7f01; lighthouse; the old lighthouse"
    assert key.scrub_reply(quoted) == "<key>; lighthouse; <key>"


@pytest.mark.parametrize(
    ("header", "is_replaced"),
    [
        ("X-Session-Affinity", False),
        ("X-Author", False),
        ("X-Tokenizer", False),
        ("X-Keyboard-Layout", False),
        ("OpenAI-Organization", False),
        ("api-key", True),
        ("x-goog-api-key", True),
        ("Ocp-Apim-Subscription-Key", True),
        ("X-AUTHTOKEN", True),
        ("x-functions-key", True),
        ("Proxy-Authorization", True),
        ("CF-Access-Client-Secret", True),
        ("X-Session-Id", True),
    ],
)
def test_a_key_is_replaced_by_headers_that_are_secrets_and_that_is_said(
    header: str, is_replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a node looked like a session, and each call was refused for want of a key."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-this-server-1234")
    path = headers_file(tmp_path, f"{header}: node-7-of-twelve\n")
    key = ApiKey.read(variable="OPENAI_API_KEY", headers_path=path)
    assert key is not None and ("Authorization" not in key.headers) is is_replaced
    given = {"naco.base_url": "https://h/v1", "naco.model": "m", "naco.headers_file": str(path)}
    said = "\n".join(check_key_use(load_config(overrides=given)))
    assert (
        f"OPENAI_API_KEY is not sent, because headers_file has {header.lower()}" in said
    ) is is_replaced
    assert ("the key from the variable OPENAI_API_KEY goes to h" in said) is not is_replaced


def test_files_of_headers_are_read_as_editors_save_them_and_whole(tmp_path: Path) -> None:
    """What stood behind 64 kB was left out, and a mark of UTF-8 was no ASCII."""
    assert read_headers(headers_file(tmp_path, "\ufeffapi-key: of-windows\n")) == {
        "api-key": "of-windows"
    }
    with pytest.raises(ConfigError, match="65,536.*QA0602"):
        read_headers(headers_file(tmp_path, "api-key: a\n" + "# more\n" * 10_000))
    with pytest.raises(ConfigError, match="65,536.*QA0602"):
        ApiKey.read(path=headers_file(tmp_path, "k" * 70_000))


def test_messages_name_the_section_of_the_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they said of `judge` was another instance's, or none's."""
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    (tmp_path / "p.txt").write_text("{candidate}")
    own = {"metric": "judge", "base_url": "https://h/v1", "model": "m",
           "prompt_file": str(tmp_path / "p.txt")}  # fmt: skip

    def said(**given: object) -> str:
        settings = {f"metrics.clarity.{key}": value for key, value in (own | given).items()}
        try:
            return "\n".join(check_key_use(load_config(overrides=settings)))
        except ConfigError as error:
            return str(error)

    path = headers_file(tmp_path, mode=0o644)
    assert "--set clarity.allow_insecure=true" in said(headers_file=str(path))
    assert "--set clarity.allow_insecure=true" in said(api_key_file=str(path))
    assert "--set clarity.allow_insecure=true" in said(base_url="http://10.0.0.7/v1")
    assert "set clarity.proxy to use a proxy" in said()
    config = load_config(overrides={f"metrics.clarity.{key}": v for key, v in own.items()})
    plan = plan_chat("clarity", config, columns={})["judge"]
    with pytest.raises(ConfigError, match=r"clarity\.journal_path.*QA0207"):
        budget_of(plan)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("api-key 7f1c-secret\n", "line 1: ... QA0602"),
        ("\nAuthorization:\n", "line 2: ... QA0602"),
        ("Content-Type: text/secret\n", "Content-Type ... QA0602"),
        ("Host: secret.example.org\n", "Host ... QA0602"),
        ("a: secret-1\nA: secret-2\n", "line 2: A ... QA0602"),
        ("a b: secret\n", "`Name: value` ... QA0602"),
        ("# nothing\n", "holds no header ... QA0602"),
    ],
)
def test_a_line_that_is_no_header_is_named_without_its_value(
    text: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as raised:
        read_headers(headers_file(tmp_path, text))
    assert tells(str(raised.value), said) and "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"body": {"model": "x"}}, "model is set by model"),
        ({"body": {"stream": True}}, "stream is set by qaeval"),
        ({"body": {"n": 3}}, "n is set by runs"),
        ({"body": {"max_completion_tokens": 3}}, "is set by max_tokens"),
        ({"body": {"extra": {"api_key": "sk-1"}}}, "api_key may be a credential"),
        ({"body": {"a": float("nan")}}, "it takes texts, numbers"),
        ({"body": {"models": [{"id": "b", "api_key": "sk-1"}]}}, "api_key may be a credential"),
        ({"body": {"extra_headers": {"X-Auth-Token": "sk-1"}}}, "X-Auth-Token may be a"),
        ({"body": {"a": [{"http_headers": [{"X-My-Key": "sk-1"}]}]}}, "X-My-Key may be a"),
        ({"body": {"token": "sk-1"}}, "token may be a credential"),
        ({"body": {"authToken": "sk-1"}}, "authToken may be a credential"),
        ({"body": {"auth": "sk-1"}}, "auth may be a credential"),
        ({"body": {"user_key": "sk-1"}}, "user_key may be a credential"),
        ({"body": {"tools": [{"authorization": "sk-1"}]}}, "authorization may be a"),
        ({"query": {"auth_token": "sk-1"}}, "auth_token may be a credential"),
        ({"query": {"auth": "sk-1"}}, "auth may be a credential"),
        ({"query": {"sas": "sk-1"}}, "sas may be a credential"),
        ({"base_url": "https://h/v1?sasToken=sk-1"}, "sasToken may be a credential"),
        ({"base_url": "https://h/v1?a=sk-1&a=2"}, "a is given twice"),
        ({"query": {"api-key": "sk-1"}}, "api-key may be a credential"),
        ({"query": {"sig": "sk-1"}}, "sig may be a credential"),
        ({"base_url": "https://h/v1?api-version=1", "query": {"a": "b"}}, "without ? and #"),
        ({"base_url": "https://h/v1?api-key=sk-1"}, "api-key may be a credential"),
        ({"headers_file": "api-key"}, "the path of a file that holds the headers"),
        ({"headers_file": "./none.txt"}, "cannot read the headers in"),
    ],
)
@pytest.mark.parametrize("metric", ["naco", "judge"])
def test_settings_that_cannot_be_are_told(
    given: dict[str, object], said: str, metric: str, tmp_path: Path
) -> None:
    """And what may be a credential is not quoted."""
    (tmp_path / "p.txt").write_text("{candidate}")
    own = {"base_url": "https://h/v1", "model": "m", **given}
    own |= {"prompt_file": str(tmp_path / "p.txt")} if metric == "judge" else {}
    with pytest.raises(ConfigError) as raised:
        check_key_use(load_config(overrides={f"{metric}.{key}": v for key, v in own.items()}))
    assert said in str(raised.value) and "sk-1" not in str(raised.value)


def test_names_that_only_look_like_secrets_are_sent() -> None:
    body = {"min_tokens": 5, "tokens": 3, "token_budget": 9, "stop_token_ids": [1], "author": "A",
            "tokenizer": "t", "pad_token": "x", "prompt_cache_key": "k", "logprobs": False,
            "extra_headers": {"X-Title": "Lighthouse", "X-Author": "Ann"}}  # fmt: skip
    query = {"author": "Ann", "max_tokens": "3", "v": 1.5}
    config = load_config(overrides={"naco.body": body, "naco.query": query})
    assert config.metrics["naco"].body == body
    assert config.metrics["naco"].query == query | {"v": "1.5"}


def test_a_date_of_yaml_is_the_text_that_was_written() -> None:
    for query in ({"api-version": "2024-10-21"}, "api-version=2024-10-21"):
        config = load_config(overrides={"naco.query": query})
        assert config.metrics["naco"].query == {"api-version": "2024-10-21"}


def test_a_query_of_the_url_is_taken_as_people_copy_it() -> None:
    given = {"naco.base_url": "https://h/openai/deployments/m?api-version=2024-10-21"}
    settings = load_config(overrides=given).metrics["naco"]
    assert settings.base_url == "https://h/openai/deployments/m"
    assert settings.query == {"api-version": "2024-10-21"}


def test_headers_that_others_may_open_and_two_keys_are_refused(tmp_path: Path) -> None:
    path = headers_file(tmp_path, mode=0o644)
    with pytest.raises(ConfigError, match="600.*QA0602"):
        read_headers(path)
    two = headers_file(tmp_path / "", "Authorization: Bearer a-secret\n")
    two.chmod(0o600)
    with pytest.raises(ConfigError, match="headers_file.*QA0602") as raised:
        ApiKey("sk-other", source="the file k", headers=read_headers(two))
    assert "a-secret" not in str(raised.value)
