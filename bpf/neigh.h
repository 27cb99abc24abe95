/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Neighbours: who is behind an address of the link. What is there before a
 * change is kept until after it, since no single hook sees both.
 */
#ifndef SOCKWATCH_NEIGH_H
#define SOCKWATCH_NEIGH_H

#include "sock.h"

struct neigh_before {
	__u64 lladdr;
	__u32 portid; /* of the netlink socket that asked for the change; 0: the kernel */
	__u8 state;
	__u8 pad[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, struct neigh_before);
} neighbours SEC(".maps");

static __always_inline bool watches_neigh(const struct neighbour *n)
{
	return may_watch(n->dev->nd_net.net->ns.inum);
}

/* The hardware address as a number, first byte lowest; 0 where it is not of Ethernet's length. */
static __always_inline __u64 lladdr_of(const struct neighbour *n)
{
	__u32 low, high;

	if (n->dev->addr_len != 6)
		return 0;
	low = *(__u32 *)n->ha;
	high = *(__u32 *)(n->ha + 4);
	return low | (__u64)(high & 0xffff) << 32;
}

static __always_inline void keep_neigh(const struct neighbour *n, __u32 portid)
{
	struct neigh_before b = {.lladdr = lladdr_of(n), .portid = portid, .state = n->nud_state};
	__u64 key = (__u64)n;

	bpf_map_update_elem(&neighbours, &key, &b, BPF_ANY);
}

static __always_inline void write_neigh(const struct neighbour *n, const struct neigh_before *b,
					__u32 program)
{
	const struct net *net = n->dev->nd_net.net;
	struct record *r;

	if (!watches(net->ns.inum))
		return;
	r = reserve(program, KIND_NEIGHBOUR);
	if (!r)
		return;
	fill_net(r, net);
	r->family = n->tbl->family;
	if (r->family == AF_INET6) {
		*(struct in6_addr *)r->remote_addr = *(struct in6_addr *)n->primary_key;
	} else {
		*(__u16 *)(r->remote_addr + 10) = 0xffff;
		*(__u32 *)(r->remote_addr + 12) = *(__u32 *)n->primary_key;
	}
	__builtin_memcpy(r->local_addr, n->dev->name, sizeof(r->local_addr));
	r->bytes_received = lladdr_of(n);
	r->arg_b = n->nud_state;
	if (b) {
		r->bytes_acked = b->lladdr;
		r->arg_a = b->state;
		if (b->portid) {
			r->owner_pid = bpf_get_current_pid_tgid() >> 32;
			bpf_get_current_comm(r->owner_comm, sizeof(r->owner_comm));
		}
	} else {
		r->bytes_acked = r->bytes_received;
	}
	submit(r);
}

SEC("tp_btf/neigh_update")
int neigh_update(__u64 *ctx)
{
	struct neighbour *n = (void *)ctx[0];
	__u32 portid = ctx[4];

	if (watches_neigh(n))
		keep_neigh(n, portid);
	return 0;
}

SEC("tp_btf/neigh_update_done")
int neigh_update_done(__u64 *ctx)
{
	struct neighbour *n = (void *)ctx[0];
	__u64 key = (__u64)n;
	struct neigh_before *b;
	__u8 state;

	if (!watches_neigh(n))
		return 0;
	b = bpf_map_lookup_elem(&neighbours, &key);
	if (!b)
		return 0;
	state = n->nud_state;
	if (b->lladdr != lladdr_of(n) || !(b->state & NUD_VALID) != !(state & NUD_VALID) ||
	    (state != b->state && state == NUD_FAILED))
		write_neigh(n, b, PROG_NEIGH_UPDATE_DONE);
	bpf_map_delete_elem(&neighbours, &key);
	return 0;
}

/* The timer has asked in vain, or begins to. */
SEC("tp_btf/neigh_timer_handler")
int neigh_timer_handler(__u64 *ctx)
{
	struct neighbour *n = (void *)ctx[0];
	__u64 key = (__u64)n;

	if (!watches_neigh(n))
		return 0;
	if (n->nud_state == NUD_PROBE)
		keep_neigh(n, 0);
	if (n->nud_state != NUD_FAILED)
		return 0;
	write_neigh(n, bpf_map_lookup_elem(&neighbours, &key), PROG_NEIGH_TIMER_HANDLER);
	bpf_map_delete_elem(&neighbours, &key);
	return 0;
}

/* A segment waits for an address that is being asked for. */
SEC("tp_btf/neigh_event_send_done")
int neigh_event_send_done(__u64 *ctx)
{
	struct neighbour *n = (void *)ctx[0];

	if (watches_neigh(n) && n->nud_state == NUD_INCOMPLETE)
		keep_neigh(n, 0);
	return 0;
}

#endif
