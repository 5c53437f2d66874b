from milligpu.agent.pod_processes import pod_uid_in_cgroup

UID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"


def test_a_process_belongs_to_the_pod_that_its_cgroup_names() -> None:
    assert pod_uid_in_cgroup(f"4:memory:/kubepods/burstable/pod{UID}/abc\n".encode()) == UID
    systemd = UID.replace("-", "_")
    assert (
        pod_uid_in_cgroup(f"0::/kubepods.slice/kubepods-pod{systemd}.slice/cri-containerd-x.scope".encode()) == UID
    )
    assert pod_uid_in_cgroup(b"0::/system.slice/containerd.service") is None
