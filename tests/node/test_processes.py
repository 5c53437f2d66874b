from milligpu.node.processes import pod_of

UID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"


def test_a_process_belongs_to_the_pod_that_its_cgroup_names() -> None:
    assert pod_of(f"4:memory:/kubepods/burstable/pod{UID}/abc\n".encode()) == UID
    systemd = UID.replace("-", "_")
    assert pod_of(f"0::/kubepods.slice/kubepods-pod{systemd}.slice/cri-containerd-x.scope".encode()) == UID
    assert pod_of(b"0::/system.slice/containerd.service") is None
