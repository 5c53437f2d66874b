"""The chart without a cluster: the parts that follow from the code are current, and values are checked."""

import pytest
import yaml

from deploy import images
from deploy.chart import CHART, files


@pytest.mark.parametrize("file", files(), ids=lambda file: file.name)
def test_what_follows_from_the_code_is_current(file: object) -> None:
    assert isinstance(file, type(CHART))
    assert file.read_text() == files()[file], "run: make chart"


def test_chart_images_and_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (images.version(), images.version())


def test_every_value_is_in_the_schema_and_unknown_ones_are_refused() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    for name, value in values.items():
        part = schema["properties"][name]
        if part["type"] == "array":
            assert part["items"]["additionalProperties"] is False, name
            continue
        assert part["additionalProperties"] is False, name
        assert set(value) == set(part["properties"]), name
    assert schema["additionalProperties"] is False


def test_every_value_of_nvidia_is_used_by_the_agent() -> None:
    text = (CHART / "templates/agent.yaml").read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert [name for name in values["nvidia"] if f".Values.nvidia.{name}" not in text] == []
