"""Other systems' groups of pods that start together, next to a request in any dialect.

Kueue, Volcano and KAI may write the number of pods on the pods. Where it is only in a PodGroup object, the pods say
it with `milligpu.dev/group-min-count`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from milligpu.dialects import pod as pods
from milligpu.model import names
from milligpu.model.affinity import parse_label
from milligpu.model.errors import BadRequest
from milligpu.model.group import GROUP_SIZE_MAX, PodGroup
from milligpu.model.request import PodRequest
from milligpu.model.units import parse_whole


@dataclass(frozen=True, slots=True)
class GroupForm:
    """How one system writes a group: a label or annotation with its name, and perhaps one with its number."""

    system: str
    name: str
    count: str | None = None


FORMS = (
    GroupForm("Kueue", "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"),
    GroupForm("coscheduling", "scheduling.x-k8s.io/pod-group"),
    GroupForm(
        "coscheduling", "pod-group.scheduling.sigs.k8s.io/name", "pod-group.scheduling.sigs.k8s.io/min-available"
    ),
    GroupForm("Volcano", "scheduling.volcano.sh/group-name", "scheduling.volcano.sh/group-min-member"),
    GroupForm("Volcano", "scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-min-member"),
    GroupForm("KAI", "pod-group-name", "kai.scheduler/batch-min-member"),
)


def apply_group(pod: pods.Json, request: PodRequest) -> PodRequest:
    """Return the request with the group of another system. Raises `BadRequest` if the pod names two groups.

    Admission has written the group of a pod that it converted: what others write later is not about its start.
    """
    notes = pods.annotations(pod)
    if not request.wants_gpu or names.DIALECT in notes:
        return request
    texts = {**notes, **pods.labels(pod)}
    found = [(form, texts[form.name]) for form in FORMS if form.name in texts]
    if not found and request.group is None and names.GROUP_MIN_COUNT in notes:
        raise BadRequest(names.GROUP, None, f"the name of the group: {names.GROUP_MIN_COUNT} needs it")
    if not found:
        return request
    form, text = found[0]
    name = parse_label(form.name, text)
    for other, said in found[1:]:
        if said != name:
            raise BadRequest(other.name, said, f"the group that {form.name} names: {name}")
    if request.group is not None:
        if request.group.name != name:
            raise BadRequest(form.name, name, f"the group that the pod names otherwise: {request.group.name}")
        return request
    count = _count(texts, [each for each, _ in found])
    return replace(request, group=PodGroup(name, count, count))


def _count(texts: Mapping[str, str], forms: list[GroupForm]) -> int:
    for field in (names.GROUP_MIN_COUNT, *(each.count for each in forms if each.count is not None)):
        if field in texts:
            return parse_whole(field, texts[field], 1, GROUP_SIZE_MAX)
    want = f"how many pods of the group start together: {forms[0].name} does not say it"
    raise BadRequest(names.GROUP_MIN_COUNT, None, want)
