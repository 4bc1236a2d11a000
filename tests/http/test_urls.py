"""URLs and addresses: what is refused by its form alone, and what counts as public."""

from __future__ import annotations

import socket

import pytest

from handlers.definition import InvalidHandler, define
from handlers.urls import InvalidURL, check_url
from runners.http.addresses import is_public, parse
from runners.http.guard import is_own


@pytest.mark.checklist("M79")
@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("https://example.com", "https://example.com/"),
        ("HTTPS://EXAMPLE.com:443/A?b=%20c", "https://example.com/A?b=%20c"),
        ("http://example.com:8081?q", "http://example.com:8081/?q"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://[2606:4700::0:1111]/", "http://[2606:4700::1111]/"),
        ("http://93.184.216.34/", "http://93.184.216.34/"),
        ("http://a_b.example/x;y=1:2@3", "http://a_b.example/x;y=1:2@3"),
    ],
)
def test_a_url_is_brought_into_its_normal_form(text: str, normal: str) -> None:
    assert str(check_url(text)) == normal
    assert str(check_url(normal)) == normal


@pytest.mark.parametrize(
    "text",
    [
        *("", "example.com", "//example.com", "ftp://example.com", "file:///etc/passwd"),
        *("http:/example.com", "http:///x", "http://", "http://:80/", "gopher://example.com"),
        *("http://u@example.com", "http://u:p@example.com", "http://example.com#f"),
        *("http://example.com\\@127.0.0.1/", "http://exa\tmple.com", "http://example.com/a b"),
        *("http://example.com/\r\nX: y", "http://example.com/\0", "http://example.com/é"),
        *("http://example.com/%zz", "http://example.com:22", "http://example.com:0"),
        *("http://example.com:65536", "http://example.com:6379", "http://example.com:+80"),
        *("http://example.com:٨٠", "http://example.com./", "http://.example.com", "http://a..b"),
        *("http://-a.example", "http://[::1", "http://::1/", "http://[::1%25lo]/", "http://[x]/"),
        *("http://①②⑦.⓪.⓪.①", "http://１２７.0.0.1", "http://faß.example", "http://a。b"),
        "http://" + "a" * 64 + ".example",
        "http://example.com/" + "a" * 2048,
    ],
)
def test_what_two_parsers_might_read_differently_is_refused(text: str) -> None:
    with pytest.raises(InvalidURL):
        check_url(text)


@pytest.mark.checklist("M79", "M93")
def test_an_http_handler_is_a_url_and_nothing_else() -> None:
    langs = ("python", "http")
    made = define("hook", {"lang": "http", "body": " http://Example.com\n"}, langs)
    assert made.body == "http://example.com/"
    with pytest.raises(InvalidHandler, match="body"):
        define("hook", {"lang": "http", "body": "return 1"}, langs)
    for field in ("before", "beforeEach", "afterEach"):
        with pytest.raises(InvalidHandler, match=field):
            define("hook", {"lang": "http", "body": "http://example.com", field: "x"}, langs)
    with pytest.raises(InvalidHandler, match="unknown lang"):
        define("hook", {"lang": "http", "body": "http://example.com"}, ("python",))


PUBLIC = [
    *("1.1.1.1", "8.8.8.8", "93.184.216.34", "100.63.255.255", "100.128.0.0", "126.255.255.255"),
    *(
        "128.0.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.0",
        "198.17.255.255",
        "223.255.255.255",
    ),
    *("2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2001:200::1"),
]
PRIVATE = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.9.9.9"),
    *("168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1"),
    *("192.88.99.1", "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1"),
    *("224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "::", "::1", "::7f00:1", "::8"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:0:7f00:1", "64:ff9b::7f00:1"),
    *("64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "2002:7f00:1::", "2002:808:808::1", "100::1"),
    *("2001::1", "2001:0:7f00:1::", "2001:db8::1", "3fff::1", "fc00::1", "fd00:ec2::254"),
    *("fe80::1", "fe80::1%2", "fec0::1", "ff02::1", "4000::1", "5f00::1"),
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public(address: str) -> None:
    assert is_public(parse(address))


@pytest.mark.parametrize("address", PRIVATE)
def test_not_public(address: str) -> None:
    assert not is_public(parse(address))


def test_this_hosts_own_addresses_are_known() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
    assert is_own(parse("127.0.0.1"))
    assert is_own(parse("::ffff:127.0.0.1"))
    assert not is_own(parse("93.184.216.34"))
