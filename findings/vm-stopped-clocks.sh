#!/usr/bin/env bash
# The guess: CLOCK_BOOTTIME counts the time in which a machine is suspended, so it also counts a pause of a virtual
#   machine; and after a restored snapshot, the guest's date is at least right.
# Instead: to the guest, the time of a pause, or between snapshot and restoration, has not been. CLOCK_BOOTTIME goes on
#   where it stood, and so does the date. Nothing tells the programs. The emulated hardware clock alone has the time.
# Why it matters: a lease that runs on any clock of the kernel is as long as before when the machine goes on, and its
#   holder writes although the lock is another's by then. Only what receives the write can refuse it, by a fencing token.
# Seen: QEMU 7.2 (Debian 12: qemu-system-x86), its own emulation, Linux 6.1 (Debian's cloud kernel), 2026-11-28.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
for tool in qemu-system-x86_64 cpio dpkg-deb; do
  command -v $tool >/dev/null || { echo "this finding needs Debian's qemu-system-x86, cpio and dpkg" >&2; exit 69; }
done
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
chmod 755 "$dir"
cd "$dir"
kernel=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends: linux-image/ {print $2; exit}')
apt-get -q download "$kernel" busybox-static >apt.log 2>&1 || { cat apt.log >&2; exit 69; }
for package in *.deb; do
  dpkg-deb -x "$package" root
done
qemu-system-x86_64 --version | head -1
echo "$kernel"

mkdir -p guest/bin guest/proc guest/dev guest/sys
cp root/bin/busybox guest/bin
cat >guest/init <<'INIT'
#!/bin/busybox sh
box=/bin/busybox
$box mount -t proc none /proc
$box mount -t sysfs none /sys
$box mount -t devtmpfs none /dev
while :; do
  $box echo "clocks;$($box cut -d' ' -f1 /proc/uptime);$($box date +%s);$($box hwclock -u -r)"
  $box sleep 0.2
done
INIT
chmod +x guest/init
(cd guest && find . | cpio -o -H newc --quiet | gzip -1) >initrd.gz

timeout 250 python3 - <<'PYTHON'
import calendar
import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PAUSE = 8
signal.signal(signal.SIGTERM, lambda *_: sys.exit("out of time"))
(kernel,) = Path("root/boot").glob("vmlinuz-*")
COMMAND = ["qemu-system-x86_64", "-accel", "tcg", "-m", "512", "-display", "none", "-nic", "none"]
COMMAND += ["-kernel", str(kernel), "-initrd", "initrd.gz", "-append", "console=ttyS0 quiet"]


class Machine:
    def __init__(self, name, *options):
        self.serial, path = Path(f"{name}.serial"), f"{name}.qmp"
        parts = ["-serial", f"file:{self.serial}", "-qmp", f"unix:{path},server=on,wait=off", *options]
        self.process = subprocess.Popen([*COMMAND, *parts])
        self.monitor = socket.socket(socket.AF_UNIX)
        while self.monitor.connect_ex(path):
            time.sleep(0.1)
        self.answers = self.monitor.makefile()
        self.answers.readline()
        self.do("qmp_capabilities")

    def do(self, command, **arguments):
        self.monitor.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        while "return" not in (said := json.loads(self.answers.readline())):
            if "error" in said:
                sys.exit(str(said))
        return said["return"]

    def clocks(self):
        """Return the newest whole reading: CLOCK_BOOTTIME, the date, the hardware clock."""
        text = self.serial.read_text(errors="replace") if self.serial.exists() else ""
        read = re.findall(r"clocks;([\d.]+);(\d+);\w+ (.{20})  .*\n", text)
        if not read:
            return None
        boot, date, hardware = read[-1]
        return float(boot), int(date), calendar.timegm(time.strptime(hardware, "%b %d %H:%M:%S %Y"))

    def next(self, after=None):
        while (now := self.clocks()) is None or now == after:
            if self.process.poll() is not None:
                sys.exit("the virtual machine has ended")
            time.sleep(0.05)
        return now


def told(what, before, after):
    counted = [round(b - a) for a, b in zip(before, after, strict=True)]
    print(f"{what} of {PAUSE} s: CLOCK_BOOTTIME counts {counted[0]}, the date {counted[1]}, the hardware clock {counted[2]}")
    boot, date, hardware = counted
    return boot < PAUSE / 2 and date < PAUSE / 2 and hardware >= PAUSE - 1


machine = Machine("first")
machine.next(machine.next())
machine.do("stop")
before = machine.clocks()
time.sleep(PAUSE)
machine.do("cont")
good = told("a pause", before, machine.next(before))

machine.do("stop")
before = machine.clocks()
machine.do("migrate", uri="exec:cat >snapshot")
while machine.do("query-migrate")["status"] != "completed":
    time.sleep(0.1)
machine.do("quit")
machine.process.wait()
time.sleep(PAUSE)
restored = Machine("second", "-incoming", "exec:cat snapshot")
while restored.do("query-status")["status"] == "inmigrate":
    time.sleep(0.1)
restored.do("cont")
after = restored.next()
restored.do("quit")
restored.process.wait()
good &= told("a snapshot, and its restoration after a pause", before, after)
sys.exit(0 if good else 1)
PYTHON
