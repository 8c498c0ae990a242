"""The files of the page: what a browser is sent, with which headers, in which language, and where there is no page."""

import re
from pathlib import Path

import httpx
import pytest

from packbert.service.http.page.routes import FOLDER, LANGUAGES, MEDIA_TYPES
from tests.paths import ROOT
from tests.service.in_process import InProcessClient

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file())
MAX_BYTES = 200_000


def home(client: InProcessClient, language: str = "", **more: str) -> httpx.Response:
    return client.get("/", headers=BROWSER | {"accept-language": language} | more)


def test_the_page_is_small() -> None:
    assert sum((FOLDER / name).stat().st_size for name in FILES) < MAX_BYTES


def test_every_file_is_in_the_wheel() -> None:
    """By the pattern in pyproject.toml; `make test-wheel` looks into a wheel. The images install one."""
    pattern = re.search(r'service\.http\.page" = \["([^"]+)"\]', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert pattern is not None
    assert {FOLDER / name for name in FILES} <= set(FOLDER.parent.glob(pattern[1]))


def test_every_file_is_served_with_its_type_and_policy(encoder: InProcessClient) -> None:
    for name in FILES:
        if name == "index.html":
            continue
        response = encoder.get(f"/page/{name}")
        assert (response.status_code, response.content) == (200, (FOLDER / name).read_bytes())
        assert response.headers["content-type"] == MEDIA_TYPES[Path(name).suffix]
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["content-security-policy"] == home(encoder).headers["content-security-policy"]


def test_the_policy_permits_no_inline_script_and_no_other_origin(encoder: InProcessClient) -> None:
    stated = home(encoder).headers["content-security-policy"].split("; ")
    policy = dict(directive.split(" ", 1) for directive in stated)
    assert policy["default-src"] == policy["form-action"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    html = home(encoder).text
    assert re.findall(r"<script(?! type=\"module\" src=)|\son\w+=|\sstyle=|<style|https?://", html) == []


def test_scripts_and_styles_name_no_other_host_and_import_what_exists() -> None:
    for name in FILES:
        source = (FOLDER / name).read_text("utf-8")
        assert set(re.findall(r"https?://[\w.]+", source)) <= {"http://www.w3.org"}  # the name space of SVG
        imported = re.findall(r'from "([^"]+)"', source)
        assert all((FOLDER / name).parent.joinpath(one).is_file() for one in imported)


@pytest.mark.parametrize(
    ("stated", "language"),
    [
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("zh-Hant-TW", "zh"),
        ("de,en;q=0.5,zh;q=0.9", "zh"),
        ("de, fr", "en"),
        ("en;q=0.4, zh;q=0", "en"),
        ("*", "en"),
    ],
)
def test_the_language_is_the_one_that_the_browser_prefers(encoder: InProcessClient, stated: str, language: str) -> None:
    response = home(encoder, stated)
    assert response.text.startswith(f'<!doctype html>\n<html lang="{language}" data-key="none">')
    assert set(response.headers["vary"].split(", ")) >= {"accept", "accept-language"}
    assert language in LANGUAGES


def test_a_browser_that_has_a_file_gets_304(encoder: InProcessClient) -> None:
    for path in ("/page/main.js", "/"):
        first = encoder.get(path, headers=BROWSER)
        etag = first.headers["etag"]
        again = encoder.get(path, headers=BROWSER | {"if-none-match": f'"other", {etag}'})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        assert encoder.get(path, headers=BROWSER | {"if-none-match": '"other"'}).status_code == 200
    assert home(encoder, "zh").headers["etag"] != home(encoder, "en").headers["etag"]


@pytest.mark.parametrize("path", ["/page/main.js", "/openapi.json"])
def test_a_file_is_compressed_where_the_client_accepts_it(encoder: InProcessClient, path: str) -> None:
    packed, plain = (encoder.get(path, headers={"accept-encoding": coding}) for coding in ("br, gzip;q=0.5", ""))
    assert (packed.headers["content-encoding"], "content-encoding" in plain.headers) == ("gzip", False)
    assert packed.content == plain.content
    assert int(packed.headers["content-length"]) < len(plain.content) == int(plain.headers["content-length"])
    if path.startswith("/page/"):  # starlette before 0.40 says it of compressed answers alone
        assert all("accept-encoding" in each.headers["vary"].lower() for each in (packed, plain))
