"""What decides on a node, without one: disk admission, the kubelet's settings, liveness of a pull, hosts files."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import ClassVar

import pytest
from ansible_collections.myriad.gpu.plugins.module_utils import warm_disk, warm_hosts, warm_kubelet
from ansible_collections.myriad.gpu.plugins.module_utils.warm_disk import Disk, Need, admit, need
from ansible_collections.myriad.gpu.plugins.module_utils.warm_progress import Progress, cause_of, last_words

GB = 10**9
LAYERS = [
    {"digest": "sha256:a", "chain": "sha256:A", "size": 2 * GB, "unpacked": 6 * GB},
    {"digest": "sha256:b", "chain": "sha256:B", "size": 1 * GB, "unpacked": 3 * GB},
    {"digest": "sha256:c", "chain": "sha256:C", "size": 1 * GB, "unpacked": 2 * GB},
]


def disk(free: int, total: int = 200, *, device: int = 1, path: str = "/var/lib/containerd", inodes: int = 0) -> Disk:
    return Disk(path, device, total * GB, free * GB, 1000 if inodes else 0, inodes)


class TestNeed:
    def test_compressed_and_unpacked_count_both(self) -> None:
        found = need(LAYERS, set(), set(), {})
        assert (found.fetch, found.unpack, found.total) == (4 * GB, 11 * GB, 15 * GB)

    def test_what_is_there_is_deducted(self) -> None:
        # The lowest layer is unpacked, the second fetched, and of the third half a GB is left from a broken pull.
        found = need(LAYERS, {"sha256:b"}, {"sha256:A"}, {"sha256:c": GB // 2})
        assert (found.fetch, found.unpack, found.present) == (GB // 2, 5 * GB, 1)

    def test_a_runtime_that_discards_what_it_unpacked_fetches_nothing_again(self) -> None:
        assert need(LAYERS, set(), {"sha256:A", "sha256:B", "sha256:C"}, {}).total == 0


class TestAdmission:
    whole = Need(4 * GB, 11 * GB, 3, 0, 4 * GB)
    share: ClassVar[dict[str, object]] = {"evictionHard": {"imagefs.available": "15%"}}

    def test_the_refusal_has_all_the_numbers(self) -> None:
        found = admit("pytorch", self.whole, disk(38), disk(38), self.share)
        assert not found.allowed
        assert found.sentence == (
            "pytorch is refused before any byte: it needs 45.0 GB free on /var/lib/containerd: "
            "4.0 GB to fetch (of 4.0 GB), 11.0 GB unpacked, 30.0 GB that the kubelet keeps free "
            "(evictionHard imagefs.available 15% of 200 GB). "
            "38.0 GB are free, 7.0 GB too few. Delete images there that nobody needs (`crictl images` lists them), "
            "or enlarge it."
        )

    def test_to_the_byte(self) -> None:
        exact = Disk("/x", 1, 200 * GB, 45 * GB)
        assert admit("i", self.whole, exact, exact, self.share).allowed
        short = Disk("/x", 1, 200 * GB, 45 * GB - 1)
        assert not admit("i", self.whole, short, short, self.share).allowed

    def test_two_file_systems_are_judged_each(self) -> None:
        content, unpacked = disk(40, device=1, path="/content"), disk(35, device=2, path="/snapshots")
        found = admit("i", self.whole, content, unpacked, self.share)
        assert "on /snapshots" in found.sentence and "(11.0 GB of it here)" in found.sentence

    def test_defaults_of_the_kubelet_hold_where_it_says_nothing(self) -> None:
        assert "evictionHard imagefs.available 15%" in admit("i", self.whole, disk(40), disk(40), {}).sentence
        # One threshold of its own, and the kubelet drops all of its defaults.
        other = {"evictionHard": {"memory.available": "100Mi"}}
        assert admit("i", self.whole, disk(16), disk(16), other).allowed
        merged = {**other, "mergeDefaultEvictionSettings": True}
        assert not admit("i", self.whole, disk(16), disk(16), merged).allowed

    def test_soft_thresholds_and_quantities_count(self) -> None:
        settings = {"evictionHard": {"imagefs.available": "1Gi"}, "evictionSoft": {"imagefs.available": "30Gi"}}
        assert "evictionSoft imagefs.available 30Gi" in admit("i", self.whole, disk(40), disk(40), settings).sentence

    def test_the_threshold_of_the_nodes_own_disk_counts_where_images_lie_on_it(self) -> None:
        settings = {"evictionHard": {"nodefs.available": "30Gi"}}
        same, other = disk(10, device=1), disk(10, device=9)
        assert not admit("i", self.whole, disk(40), disk(40), settings, same).allowed
        assert admit("i", self.whole, disk(40), disk(40), settings, other).allowed

    def test_inodes_run_out_too(self) -> None:
        found = admit("i", self.whole, disk(100, inodes=40), disk(100, inodes=40), {})
        assert "40 inodes free" in found.sentence and "below 50" in found.sentence

    def test_an_image_that_makes_the_kubelet_collect_is_let_in_with_a_warning(self) -> None:
        settings = {"evictionHard": {"imagefs.available": "1Gi"}, "imageGCHighThresholdPercent": 80}
        found = admit("i", self.whole, disk(40), disk(40), settings)
        assert found.allowed and "88 % full, above the kubelet's imageGCHighThresholdPercent of 80" in found.warnings[0]

    def test_nothing_to_fetch_is_never_refused(self) -> None:
        assert admit("i", Need(0, 0, 3, 3, GB), disk(0), disk(0), {}).allowed

    def test_estimates_say_so(self) -> None:
        guessed = Need(4 * GB, 11 * GB, 3, 0, 4 * GB, estimated=True)
        assert "about 11.0 GB unpacked" in admit("i", guessed, disk(1), disk(1), {}).sentence

    @pytest.mark.parametrize("text", ["", "ten", "10Gb", "-1Gi", "%"])
    def test_a_threshold_that_is_none_is_said(self, text: str) -> None:
        with pytest.raises(ValueError, match="is no threshold"):
            warm_disk.amount(text, GB)


class TestKubelet:
    def test_the_file_of_kubeadm_is_read_without_a_library(self) -> None:
        text = (
            "apiVersion: kubelet.config.k8s.io/v1beta1\n# comment\nclusterDNS:\n- 10.96.0.10\nevictionHard:\n"
            '  imagefs.available: 15%\n  nodefs.available: "1Gi"  # why\nimageGCHighThresholdPercent: 99\n'
            "imageMaximumGCAge: 0s\nfailSwapOn: false\nlogging:\n  flushFrequency: 0\n  options:\n    json:\n"
            '      infoBufferSize: "0"\nevictionSoft: {imagefs.available: 20%}\n'
        )
        found = warm_kubelet.parse(text)
        assert found["evictionHard"] == {"imagefs.available": "15%", "nodefs.available": "1Gi"}
        assert found["evictionSoft"] == {"imagefs.available": "20%"}
        assert (found["imageGCHighThresholdPercent"], found["failSwapOn"]) == (99, False)

    def test_drop_ins_are_added_key_by_key(self, tmp_path: Path) -> None:
        main, folder = tmp_path / "var/lib/kubelet/config.yaml", tmp_path / "etc/kubernetes/kubelet.conf.d"
        main.parent.mkdir(parents=True)
        folder.mkdir(parents=True)
        main.write_text("evictionHard:\n  imagefs.available: 15%\n  nodefs.available: 10%\nfailSwapOn: true\n")
        (folder / "10-first.conf").write_text("evictionHard:\n  imagefs.available: 1Gi\n")
        (folder / "20-last.conf").write_text("imageGCHighThresholdPercent: 99\nfailSwapOn: false\n")
        assert warm_kubelet.read(str(tmp_path)) == {
            "evictionHard": {"imagefs.available": "1Gi", "nodefs.available": "10%"},
            "imageGCHighThresholdPercent": 99,
            "failSwapOn": False,
        }
        assert warm_kubelet.read(str(tmp_path / "nowhere")) is None

    @pytest.mark.parametrize(
        ("settings", "versions", "pinned", "kept", "words"),
        [
            ({}, ("v1.35.4", "v2.3.4"), True, True, "the image is pinned"),
            ({}, ("v1.35.4", "v2.3.4"), False, False, "85 % full, down to 80 %"),
            (
                {"imageGCHighThresholdPercent": 70, "imageGCLowThresholdPercent": 60},
                ("", ""),
                False,
                False,
                "70 % full",
            ),
            ({"imageGCHighThresholdPercent": 100}, ("v1.35.4", ""), False, None, "is not pinned"),
            ({"imageMaximumGCAge": "168h"}, ("v1.35.4", ""), False, False, "imageMaximumGCAge is 168h"),
            ({}, ("v1.35.4", "v1.7.8"), True, False, "containerd v1.7.8 loses the pin"),
            ({}, ("v1.35.4", "v1.7.10"), True, True, "the image is pinned"),
            ({}, ("v1.35.4", "v1.6.24"), True, False, "1.6.25 keeps it"),
            ({}, ("v1.24.17", "v2.3.4"), True, False, "does not know pinned images"),
            ({}, ("v1.27.3", "v2.3.4"), True, None, "only later patch releases"),
            ({"imagePullCredentialsVerificationPolicy": "AlwaysVerify"}, ("v1.35.4", ""), True, True, "credentials"),
            ({"imageGCLowThresholdPercent": 90}, ("v1.35.4", "v2.3.4"), True, True, "refuses to start"),
        ],
    )
    def test_whether_it_will_keep_an_image(
        self, settings: dict[str, object], versions: tuple[str, str], pinned: bool, kept: bool | None, words: str
    ) -> None:
        found = warm_kubelet.audit(settings, kubelet_version=versions[0], containerd_version=versions[1], pinned=pinned)
        assert found["kept"] is kept
        assert words in " ".join(found["sentences"])

    def test_where_no_kubelet_runs_nobody_collects(self) -> None:
        assert warm_kubelet.audit(None)["kept"] is True


class TestProgress:
    def test_a_slow_pull_of_a_large_image_lives_for_hours(self) -> None:
        watch = Progress(20 * GB, stall_s=60, least_rate=200_000)
        assert not any(watch.see(second, second * 300_000) for second in range(0, 6 * 3600, 5))

    def test_one_that_stands_still_is_given_up_after_its_window_and_says_how_far_it_came(self) -> None:
        watch = Progress(20 * GB, stall_s=60, least_rate=200_000)
        assert not watch.see(0, 0)
        assert not watch.see(30, 5 * GB)
        assert not watch.see(60, 5 * GB)
        assert not watch.see(85, 5 * GB)
        assert "nothing moved in 60 s (5.0 GB of 20.0 GB were done)" in watch.see(90, 5 * GB)

    def test_a_trickle_below_the_rate_is_as_good_as_nothing(self) -> None:
        watch = Progress(GB, stall_s=10, least_rate=1000)
        said = [watch.see(second, second * 100) for second in range(30)]
        assert next(text for text in said if text).startswith("only 1 kB moved in 10 s")

    def test_the_deadline_follows_from_the_size(self) -> None:
        assert Progress(20 * GB, 120, 1_000_000).deadline_s == 20_120
        assert Progress(GB, 120, 1_000_000).deadline_s == 1_120

    def test_a_blob_that_moves_to_its_place_is_no_step_back(self) -> None:
        watch = Progress(GB, stall_s=10, least_rate=1000)
        watch.see(0, 0)
        watch.see(5, 10**6)
        assert not watch.see(9, 0)
        assert watch.moved == 10**6


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ('ctr: failed to copy: write /var/lib/containerd/x: no space left on device', "disk"),
        ("ctr: registry.x/a@sha256:0: not found", "missing"),
        ("ctr: failed to resolve: unexpected status from HEAD request: 401 Unauthorized", "login"),
        ('ctr: failed to do request: dial tcp 10.0.0.1:5000: connect: connection refused', "registry"),
        ("ctr: failed to do request: tls: failed to verify certificate: x509: unknown authority", "registry"),
        ("ctr: rpc error: code = Unavailable desc = error reading from server: EOF", "runtime"),
        ("ctr: cannot access socket /run/containerd/containerd.sock: connect: connection refused", "runtime"),
        ("ctr: cannot access socket /run/containerd/containerd.sock: no such file or directory", "runtime"),
        ("ctr: unexpected commit digest sha256:a, expected sha256:b: failed precondition", "content"),
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock", "runtime"),
        ("ctr: unexpected status: 503 Service Unavailable", "registry"),
        ("ctr: blob sha256:9a404c4015128de: broken pipe", "other"),
        ("something else", "other"),
    ],
)  # fmt: skip
def test_what_a_pull_died_of(said: str, cause: str) -> None:
    assert cause_of(said) == cause


def test_the_drawing_of_progress_is_no_message() -> None:
    assert last_words("\x1b[32m+++\x1b[0m| layer\nelapsed\nctr: it broke\n") == "ctr: it broke"


class TestHosts:
    site = (
        'server = "https://one"\n\n[host."https://one"]\n  capabilities = ["pull"]\n  ca = "/etc/ca.pem"\n'
        '  [host."https://one".header]\n    authorization = "Basic abc"\n\n[host."https://two"]\n'
        '  capabilities = ["pull", "resolve"]\n  ca = "/etc/other.pem"\n'
    )

    def test_one_host_is_left_with_all_that_the_site_set_for_it(self) -> None:
        found = warm_hosts.narrowed(self.site, "https://one")
        assert found.startswith('server = "https://one"\n')
        assert 'ca = "/etc/ca.pem"' in found and 'authorization = "Basic abc"' in found
        assert "two" not in found and "other.pem" not in found
        assert warm_hosts.endpoints(found) == ["https://one"]

    def test_a_host_that_the_site_does_not_name_is_asked_plainly(self) -> None:
        found = warm_hosts.narrowed(self.site, "http://three:5000")
        assert warm_hosts.endpoints(found) == ["http://three:5000"]
        assert "Basic" not in found and '["pull", "resolve"]' in found

    def test_credentials_are_for_root_alone(self, tmp_path: Path) -> None:
        folder = warm_hosts.write(str(tmp_path), "r.internal", warm_hosts.narrowed(self.site, "https://one"))
        assert stat.S_IMODE((Path(folder) / "r.internal" / "hosts.toml").stat().st_mode) == 0o600
        assert warm_hosts.read(folder, "r.internal").startswith('server = "https://one"')
        assert warm_hosts.read(folder, "other") == ""
