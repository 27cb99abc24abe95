// Package kernelstest boots the kernels that Debian ships in virtual machines
// and runs static test binaries in them.
//
// [Archive] finds and fetches kernels with a private apt configuration, so that
// the machine's own is left alone. [Initramfs] is what a machine boots into: the
// modules, the tests, and the guest (package guest) that runs them. [Machine]
// runs it in qemu by software emulation, which needs no /dev/kvm, and passes the
// results through.
//
// Emulated time proves nothing about speed.
package kernelstest
