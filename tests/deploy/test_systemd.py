"""The systemd unit: its directives exist, and its times and exit codes are those of the service."""

import shutil
import subprocess
from pathlib import Path

from packbert.service.settings import Settings
from packbert.service.workers.supervisor import STOP_GRACE_SECONDS
from tests.deploy.queries import DEPLOY
from tests.paths import ROOT

UNIT = DEPLOY / "systemd" / "packbert.service"
# Names that systemd 252 knows; it ignores others with a line in its log.
HARDENING = """
    CapabilityBoundingSet LockPersonality NoNewPrivileges PrivateTmp ProtectClock ProtectControlGroups ProtectHome
    ProtectHostname ProtectKernelLogs ProtectKernelModules ProtectKernelTunables ProtectProc ProtectSystem
    RestrictAddressFamilies RestrictNamespaces RestrictRealtime RestrictSUIDSGID SystemCallArchitectures
    SystemCallErrorNumber SystemCallFilter UMask
"""
RUNNING = """
    CacheDirectory DynamicUser Environment EnvironmentFile ExecReload ExecStart KillMode LimitNOFILE NotifyAccess
    Restart RestartPreventExitStatus RestartSec TimeoutStartSec TimeoutStopSec Type
"""


def directives() -> dict[str, str]:
    """Of the section [Service]."""
    text = UNIT.read_text("utf-8").partition("[Service]\n")[2].partition("\n[Install]")[0]
    pairs = [line.partition("=") for line in text.splitlines() if line and not line.startswith("#")]
    found = {name: value for name, _, value in pairs}
    assert len(found) == len(pairs)
    return found


SERVICE = directives()


def test_every_directive_is_one_of_systemd(tmp_path: Path) -> None:
    assert set(SERVICE) == {*HARDENING.split(), *RUNNING.split()}
    if (command := shutil.which("systemd-analyze")) is not None:  # where systemd is installed, it checks the unit too
        unit = tmp_path / UNIT.name
        unit.write_text(UNIT.read_text("utf-8").replace(SERVICE["ExecStart"], "/bin/true"), "utf-8")
        checked = subprocess.run([command, "verify", unit], capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_a_reload_is_the_signal_that_reads_the_file_of_models_again() -> None:
    kill, *words = SERVICE["ExecReload"].split()
    assert (Path(kill).exists(), words) == (True, ["-HUP", "$MAINPID"])
    assert f"`ExecReload={SERVICE['ExecReload']}`" in (ROOT / "docs" / "operate" / "models.md").read_text("utf-8")


def test_start_waits_for_a_message_stop_for_the_service_and_a_wrong_setting_for_nobody() -> None:
    assert (SERVICE["Type"], SERVICE["NotifyAccess"]) == ("notify", "main")
    fields = Settings.model_fields
    longest = fields["linger_seconds"].default + fields["drain_seconds"].default + 2 * STOP_GRACE_SECONDS
    assert float(SERVICE["TimeoutStopSec"].removesuffix("s")) >= longest
    assert SERVICE["KillMode"] == "mixed"  # SIGTERM to the supervisor only
    assert (SERVICE["Restart"], SERVICE["RestartPreventExitStatus"]) == ("on-failure", "2")
    assert "exit code 2" in (ROOT / "OPERATING.md").read_text("utf-8")


def test_the_cache_is_the_folder_that_systemd_makes() -> None:
    variables = dict(pair.split("=", 1) for pair in SERVICE["Environment"].split())
    settings = Settings.from_environment({"BERT_MODEL": "org/model", "XDG_CACHE_HOME": variables["XDG_CACHE_HOME"]})
    assert settings.cache_folder == Path("/var/cache", SERVICE["CacheDirectory"])
    assert settings.cache_folder in Path(variables["HF_HOME"]).parents
