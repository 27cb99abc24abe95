#!/bin/bash
# Installs what a target of the Makefile needs and this machine lacks, quietly:
#
#   hack/install-deps.sh generate|test|kernels|lint...
#
# Packages come from apt; elsewhere it says what is missing.
set -euo pipefail

golangci_version=v2.15.0

# command package, one pair a line.
needs() {
	case $1 in
	generate)
		echo clang clang
		echo llvm-strip llvm
		echo /usr/include/bpf/bpf_helpers.h libbpf-dev
		;;
	test)
		echo gcc gcc # the race detector is linked by it
		echo /usr/include/stdio.h libc6-dev
		echo ip iproute2
		echo nft nftables
		echo script bsdutils
		echo nsenter util-linux
		echo unshare util-linux
		echo setpriv util-linux
		;;
	kernels)
		echo qemu-system-x86_64 qemu-system-x86
		echo xz xz-utils
		echo dpkg-deb dpkg
		echo /usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring
		;;
	lint)
		echo clang-format clang-format
		;;
	*)
		echo "install-deps.sh: unknown target $1" >&2
		return 1
		;;
	esac
}

missing=()
for target in "$@"; do
	list=$(needs "$target")
	while read -r what package; do
		if [[ $what == /* ]]; then
			[[ -e $what ]] || missing+=("$package")
		else
			command -v "$what" >/dev/null || missing+=("$package")
		fi
	done <<<"$list"
done

if ((${#missing[@]})); then
	if ! command -v apt-get >/dev/null; then
		echo "missing, and there is no apt to install them: ${missing[*]}" >&2
		exit 1
	fi
	echo "installing ${missing[*]}"
	sudo=
	[[ $(id -u) -eq 0 ]] || sudo=sudo
	export DEBIAN_FRONTEND=noninteractive
	$sudo apt-get -qq update
	$sudo apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
fi

for target in "$@"; do
	if [[ $target == lint ]] && ! golangci-lint version 2>/dev/null | grep -q "version v\?${golangci_version#v}"; then
		echo "installing golangci-lint $golangci_version to $(go env GOPATH)/bin: this takes some minutes"
		go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$golangci_version"
	fi
done
