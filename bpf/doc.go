// Package bpf holds the programs that run in the kernel, and the record they
// write.
//
// record.h is the record's only definition; [Record] is generated from it.
// The compiled objects are committed, so that building sockwatch needs no
// clang: regenerate them with make generate after a change to the C.
package bpf

//go:generate go tool bpf2go -go-package bpf -target bpfel -type record -type record_kind -type program_id -type receive_why -type wire_why -type io_why -type record_flag -type owner_via Observe observe.bpf.c -- -I. -Wall -Wextra -Wno-unused-parameter -Werror
//go:generate go tool bpf2go -go-package bpf -target bpfel Wire wire.bpf.c -- -I. -Wall -Wextra -Wno-unused-parameter -Werror
