#!/usr/bin/env bash
# Makes a folder that holds an arm64 Debian with Python, and the wheels that a device of that kind installs.
#
#   tests/arm64.sh FOLDER REQUIREMENT ...
#
# Debian's packages come through an apt configuration of its own and are unpacked, never installed: programs of the
# folder run by `qemu-aarch64-static -cpu cortex-a72 -L FOLDER FOLDER/usr/bin/python3`, and no package's script has to.
# Wheels stand in FOLDER/wheels. A folder that this script made for the same requirements is left as it is; else a new
# one takes its place once it is whole.
set -euo pipefail
folder=${1:?the folder to make}
shift
suite=trixie python=3.13
made=$(sha256sum < "$0"; printf '%s\n' "$@")
[[ -e $folder/made ]] && [[ $(cat "$folder/made") == "$made" ]] && exit 0

for command in apt-get dpkg-deb python3; do
    command -v "$command" >/dev/null || { echo "needs $command" >&2; exit 1; }
done
mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT

debian() {
    local keys=/usr/share/keyrings/debian-archive-keyring.gpg mirror=http://deb.debian.org/debian
    local state=$work/apt
    mkdir -p "$state/lists/partial" "$state/archives/partial"
    : > "$state/status"
    echo "deb [signed-by=$keys] $mirror $suite main" > "$state/sources.list"
    cat > "$state/apt.conf" <<APT
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Dir::State::Lists "$state/lists";
Dir::State::status "$state/status";
Dir::Cache "$state";
Dir::Etc::SourceList "$state/sources.list";
Dir::Etc::SourceParts "-";
Acquire::Languages "none";
APT
    export APT_CONFIG=$state/apt.conf
    timeout 120 apt-get update -qq
    timeout 120 apt-get install -qq --download-only -y base-files "python$python" libstdc++6 ca-certificates >/dev/null
    unset APT_CONFIG
    mkdir -p "$work/root/usr/"{bin,lib,sbin}
    for place in bin lib sbin; do ln -s "usr/$place" "$work/root/$place"; done
    for package in "$state"/archives/*.deb; do dpkg-deb -x "$package" "$work/root"; done
    ln -sf "python$python" "$work/root/usr/bin/python3"
    rm -rf "$state" "$work/root/usr/share/"{doc,locale,man}
}

wheels() {
    timeout 240 python3 -m pip install --quiet --disable-pip-version-check --no-compile --only-binary=:all: --target \
        "$work/root/wheels" --python-version "$python" --implementation cp --platform manylinux_2_28_aarch64 \
        --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 --platform manylinux_2_17_aarch64 "$@"
}

# A Raspberry Pi 4's processor as its Linux describes it. Emulated programs would read of this machine's, and ONNX
# Runtime ends where an arm64 one looks like that.
processor() {
    local all=$work/root/sys/devices/system/cpu core
    mkdir -p "$all"
    echo 0-3 | tee "$all/possible" "$all/present" "$all/online" >/dev/null
    echo 3 > "$all/kernel_max"
    for core in 0 1 2 3; do
        local one=$all/cpu$core
        mkdir -p "$one/topology" "$one/cpufreq" "$one/regs/identification"
        echo 0-3 | tee "$one/topology/"{cluster_cpus_list,core_siblings_list,package_cpus_list} >/dev/null
        echo "$core" | tee "$one/topology/"{core_id,core_cpus_list,thread_siblings_list} >/dev/null
        echo 0 | tee "$one/topology/"{cluster_id,physical_package_id} >/dev/null
        echo 600000 > "$one/cpufreq/cpuinfo_min_freq"
        echo 1500000 > "$one/cpufreq/cpuinfo_max_freq"
        echo 0x00000000410fd083 > "$one/regs/identification/midr_el1"
        printf '%s\n' "processor : $core" "BogoMIPS : 108.00" "Features : fp asimd evtstrm crc32 cpuid" \
            "CPU implementer : 0x41" "CPU architecture: 8" "CPU variant : 0x0" "CPU part : 0xd08" "CPU revision : 3" ""
    done > "$work/root/proc/cpuinfo"
}

debian
processor
wheels "$@"
printf '%s\n' "$made" > "$work/root/made"
rm -rf "$folder"
mv "$work/root" "$folder"
