"""The API server calls the webhook for every pod that a dialect can read."""

import re

import pytest

from milligpu.dialects.choose import KNOWN
from milligpu.dialects.dialect import Dialect
from milligpu.manifests.webhook_configuration import WebhookAddress, webhook_configuration


def expressions() -> str:
    return str(webhook_configuration(WebhookAddress()))


@pytest.mark.parametrize("dialect", KNOWN.dialects, ids=lambda dialect: dialect.name)
def test_a_dialects_patterns_cover_its_resources_and_reach_the_match_conditions(dialect: Dialect) -> None:
    for resource in dialect.resources:
        assert any(re.match(pattern, resource) for pattern in dialect.resource_patterns), resource
    parts = (*dialect.resource_patterns, *dialect.annotation_patterns, *dialect.label_patterns)
    assert parts
    for part in (*parts, *dialect.command_words):
        assert part.replace("\\", "\\\\") in expressions()
