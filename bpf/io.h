/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What applications write and read. The hooks are at the end of the system
 * call, in the process that made it. Loaded only when asked for.
 */
#ifndef SOCKWATCH_IO_H
#define SOCKWATCH_IO_H

#include "headers.h"

#define MSG_ERRQUEUE 0x2000
#define TASK_FROZEN 0x8000 /* in the freezer of version 1 */

/* States of the version 1 freezer: frozen by itself or by a parent. */
#define CGROUP_FREEZING (2 | 4)

const volatile bool watch_io;                  /* asked for */
const volatile bool have_task_from_pid = true; /* 6.2 */

extern struct task_struct *bpf_task_from_pid(__s32 pid) __ksym __weak;
extern void bpf_task_release(struct task_struct *p) __ksym __weak;

/* Whether the main thread of the process that owns a socket is frozen, by either version of cgroups. */
static __always_inline bool owner_frozen(struct sock *sk)
{
	struct task_struct *task;
	struct note *n;
	bool frozen;

	if (!watch_io || !have_task_from_pid)
		return false;
	n = note_of(sk);
	if (!n || !n->pid)
		return false;
	task = bpf_task_from_pid(n->pid);
	if (!task)
		return false;
	frozen = BPF_CORE_READ_BITFIELD(task, frozen) || (task->__state & TASK_FROZEN);
	bpf_task_release(task);
	return frozen;
}

/* Whether the running task's cgroup is to be frozen, by either version of cgroups. */
static __always_inline __u8 frozen(void)
{
	const struct css_set *set = ((struct task_struct *)bpf_get_current_task_btf())->cgroups;
	__u8 why = 0;

	if (bpf_core_field_exists(set->dfl_cgrp->freezer.e_freeze)) {
		why |= IO_FROZEN_KNOWN;
		if (set->dfl_cgrp->freezer.e_freeze)
			why |= IO_FROZEN;
	}
	if (bpf_core_type_exists(struct freezer) &&
	    bpf_core_enum_value_exists(enum cgroup_subsys_id, freezer_cgrp_id)) {
		__u32 id = bpf_core_enum_value(enum cgroup_subsys_id, freezer_cgrp_id);
		const struct cgroup_subsys_state *css = set->subsys[id];

		if (css) {
			why |= IO_FROZEN_KNOWN;
			if (cast_to(freezer, css)->state & CGROUP_FREEZING)
				why |= IO_FROZEN;
		}
	}
	return why;
}

static __always_inline int application(struct sock *sk, int ret, int flags, __u32 program, bool out)
{
	struct record *r;

	if (ret < 0 || (flags & MSG_ERRQUEUE))
		return 0;
	if (!may_watch(sk->__sk_common.skc_net.net->ns.inum) || sk->sk_type != SOCK_STREAM ||
	    sk->sk_protocol != IPPROTO_TCP || !watches(sk->__sk_common.skc_net.net->ns.inum))
		return 0;
	make_cookie(sk);
	r = reserve(program, KIND_IO);
	if (!r)
		return 0;
	fill_sock(r, sk, NULL);
	r->owner_pid = bpf_get_current_pid_tgid() >> 32;
	r->owner_via = out ? VIA_SEND : VIA_RECV;
	bpf_get_current_comm(r->owner_comm, sizeof(r->owner_comm));
	r->arg_a = ret;
	r->arg_b = flags;
	r->why = frozen();
	if (out)
		r->flags |= FLAG_OUT;
	submit(r);
	return 0;
}

SEC("tp_btf/sock_send_length")
int sock_send_length(__u64 *ctx)
{
	return application((void *)ctx[0], ctx[1], ctx[2], PROG_SOCK_SEND_LENGTH, true);
}

SEC("tp_btf/sock_recv_length")
int sock_recv_length(__u64 *ctx)
{
	return application((void *)ctx[0], ctx[1], ctx[2], PROG_SOCK_RECV_LENGTH, false);
}

#endif
