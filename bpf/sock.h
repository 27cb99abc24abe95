/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the programs share: the maps, the filter, reserve-or-count, and the
 * readers that fill a record from a socket. Every read is a direct load
 * through BTF: bpf_probe_read_kernel is refused on a kernel locked down for
 * confidentiality, loads are not.
 */
#ifndef SOCKWATCH_SOCK_H
#define SOCKWATCH_SOCK_H

#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "record.h"

/* What this kernel has; set by the loader, constant to the verifier. */
const volatile bool have_socket_cookie = true; /* bpf_get_socket_cookie in tracing, 5.12 */
const volatile bool have_sk_storage = true;    /* bpf_sk_storage_get in tracing, 5.11 */
const volatile bool have_task_btf = true;      /* bpf_get_current_task_btf, 5.11 */
const volatile bool have_rdonly_cast = true;   /* bpf_rdonly_cast, 6.2 */

const volatile __u64 wakeup_bytes = 1 << 20; /* records waiting that wake the reader */

extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym __weak;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
	__type(value, struct record);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PROG_MAX);
	__type(key, __u32);
	__type(value, struct counts);
} counters SEC(".maps");

/*
 * Watched namespaces: a bit per inode number modulo the map's size, so that
 * the unwatched rest is turned away by one load, and the inode numbers
 * themselves behind it.
 */
#define WATCHED_BITS (1 << 16)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WATCHED_BITS / 64);
	__type(key, __u32);
	__type(value, __u64);
} watched_bits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u32);
} watched SEC(".maps");

/* What is kept about a socket between hooks. It ends with the socket. */
struct note {
	__u32 pid;
	__u8 via;
	__u8 run; /* a retransmission is out that nothing has acknowledged */
	__u8 pad[2];
	__u8 comm[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct note);
} notes SEC(".maps");

/* The same where tracing programs have no socket storage: by address, deleted by tcp_destroy_sock. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct note);
} notes_by_addr SEC(".maps");

/*
 * False for nearly every namespace that is not watched. Where most runs write
 * nothing it is asked first, and the exact answer only before something is
 * written.
 */
static __always_inline bool may_watch(__u32 inode)
{
	__u32 word = (inode % WATCHED_BITS) / 64;
	__u64 *bits = bpf_map_lookup_elem(&watched_bits, &word);

	return bits && (*bits & (1ULL << (inode % 64)));
}

static __always_inline bool watches(__u32 inode)
{
	return may_watch(inode) && bpf_map_lookup_elem(&watched, &inode);
}

static __always_inline struct record *reserve(__u32 program, __u8 kind)
{
	struct counts *c = bpf_map_lookup_elem(&counters, &program);
	struct record *r;

	if (!c)
		return NULL;
	__sync_fetch_and_add(&c->produced, 1);
	r = bpf_ringbuf_reserve(&events, sizeof(*r), 0);
	if (!r) {
		__sync_fetch_and_add(&c->lost, 1);
		return NULL;
	}
	__builtin_memset(r, 0, sizeof(*r));
	r->mono_ns = bpf_ktime_get_ns();
	r->jiffies = bpf_jiffies64();
	r->cpu = bpf_get_smp_processor_id();
	r->program = program;
	r->kind = kind;
	return r;
}

/*
 * The reader looks every few milliseconds by itself; waking it for each record
 * would cost more than all the rest. It is woken when the ring fills.
 */
static __always_inline void submit(struct record *r)
{
	__u64 waiting = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA);

	bpf_ringbuf_submit(r, waiting >= wakeup_bytes ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

static __always_inline void fill_net(struct record *r, const struct net *net)
{
	r->netns_inode = net->ns.inum;
	if (bpf_core_field_exists(net->net_cookie))
		r->net_cookie = net->net_cookie;
}

/* Addresses and ports as far as struct sock_common knows them. */
static __always_inline void fill_tuple(struct record *r, const struct sock_common *skc)
{
	r->family = skc->skc_family;
	r->state = skc->skc_state;
	r->remote_port = bpf_ntohs(skc->skc_dport);
	r->local_port = skc->skc_num;
	if (r->family == AF_INET6) {
		*(struct in6_addr *)r->local_addr = skc->skc_v6_rcv_saddr;
		*(struct in6_addr *)r->remote_addr = skc->skc_v6_daddr;
	} else {
		*(__u16 *)(r->local_addr + 10) = 0xffff;
		*(__u16 *)(r->remote_addr + 10) = 0xffff;
		*(__u32 *)(r->local_addr + 12) = skc->skc_rcv_saddr;
		*(__u32 *)(r->remote_addr + 12) = skc->skc_daddr;
	}
}

static __always_inline __u64 retransmit_timer(const struct sock *sk, const struct tcp_sock *tp)
{
	const struct inet_connection_sock___timeout *old = (void *)&tp->inet_conn;
	const struct sock___timer *moved = (void *)sk;

	if (bpf_core_field_exists(moved->tcp_retransmit_timer))
		return moved->tcp_retransmit_timer.expires;
	if (bpf_core_field_exists(old->icsk_timeout))
		return old->icsk_timeout;
	return tp->inet_conn.icsk_retransmit_timer.expires;
}

static __always_inline void fill_tcp(struct record *r, const struct sock *sk,
				     const struct tcp_sock *tp)
{
	const struct inet_connection_sock *icsk = &tp->inet_conn;
	unsigned long flags = sk->__sk_common.skc_flags;

	r->flags |= FLAG_FULL_SOCK;
	if (flags & (1UL << bpf_core_enum_value(enum sock_flags, SOCK_DEAD)))
		r->flags |= FLAG_DEAD;
	if (flags & (1UL << bpf_core_enum_value(enum sock_flags, SOCK_KEEPOPEN)))
		r->flags |= FLAG_KEEPOPEN;
	if (flags & (1UL << bpf_core_enum_value(enum sock_flags, SOCK_LINGER)))
		r->flags |= FLAG_LINGER;
	if (bpf_core_field_exists(tp->is_mptcp) && tp->is_mptcp)
		r->flags |= FLAG_MPTCP;
	r->linger_jiffies = sk->sk_lingertime;
	r->sk_err = sk->sk_err;
	r->shutdown = sk->sk_shutdown;

	/* inet_sport outlives skc_num, which is cleared with the port's binding. */
	if (!r->local_port)
		r->local_port = bpf_ntohs(icsk->icsk_inet.inet_sport);

	r->snd_una = tp->snd_una;
	r->snd_nxt = tp->snd_nxt;
	r->write_seq = tp->write_seq;
	r->rcv_nxt = tp->rcv_nxt;
	r->copied_seq = tp->copied_seq;
	r->bytes_acked = tp->bytes_acked;
	r->bytes_received = tp->bytes_received;
	r->rto = icsk->icsk_rto;
	r->srtt_us = tp->srtt_us >> 3;
	r->rttvar_us = tp->rttvar_us >> 2;
	r->rtt_min_us = tp->rtt_min.s[0].v;
	r->snd_cwnd = tp->snd_cwnd;
	r->ssthresh = tp->snd_ssthresh;
	r->snd_wnd = tp->snd_wnd;
	r->rcv_wnd = tp->rcv_wnd;
	r->packets_out = tp->packets_out;
	r->retrans_out = tp->retrans_out;
	r->lost_out = tp->lost_out;
	r->sacked_out = tp->sacked_out;
	r->total_retrans = tp->total_retrans;
	r->undo_marker = tp->undo_marker;
	r->retrans_stamp = tp->retrans_stamp;
	/* 6.7: a route may have it in microseconds. */
	if (r->retrans_stamp && bpf_core_field_exists(tp->tcp_usec_ts) &&
	    BPF_CORE_READ_BITFIELD(tp, tcp_usec_ts)) {
		__u32 since_us = r->mono_ns / 1000 - r->retrans_stamp;

		r->retrans_stamp = r->mono_ns / 1000000 - since_us / 1000;
	}
	if (bpf_core_field_exists(icsk->icsk_probes_tstamp)) /* 5.11 */
		r->probes_tstamp = icsk->icsk_probes_tstamp;
	r->rcv_tstamp = tp->rcv_tstamp;
	r->lrcvtime = icsk->icsk_ack.lrcvtime;
	r->user_timeout_ms = icsk->icsk_user_timeout;
	r->keepalive_time = tp->keepalive_time;
	r->keepalive_intvl = tp->keepalive_intvl;
	r->keepalive_probes = tp->keepalive_probes;
	r->ca_state = BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state);
	r->retransmits = icsk->icsk_retransmits;
	r->backoff = icsk->icsk_backoff;
	r->probes_out = icsk->icsk_probes_out;
	r->pending = icsk->icsk_pending;
	r->syn_retries = icsk->icsk_syn_retries;
	r->timer_expires = retransmit_timer(sk, tp);
}

/* The inode that /proc/PID/fd shows; 0 when no file holds the socket. */
static __always_inline __u64 inode_of(const struct sock *sk)
{
	struct socket *socket = sk->sk_socket;

	if (!socket || !socket->file)
		return 0;
	return socket->file->f_inode->i_ino;
}

/* Makes sk_cookie if nobody asked for it before. */
static __always_inline void make_cookie(struct sock *sk)
{
	if (have_socket_cookie && !sk->__sk_common.skc_cookie.counter)
		bpf_get_socket_cookie(sk);
}

static __always_inline struct note *note_of(struct sock *sk)
{
	__u64 key = (__u64)sk;

	if (have_sk_storage)
		return bpf_sk_storage_get(&notes, sk, NULL, 0);
	return bpf_map_lookup_elem(&notes_by_addr, &key);
}

/* The socket's note, made if there is none yet; NULL only when out of memory. */
static __always_inline struct note *make_note(struct sock *sk)
{
	__u64 key = (__u64)sk;
	struct note none = {};

	if (have_sk_storage)
		return bpf_sk_storage_get(&notes, sk, &none, BPF_SK_STORAGE_GET_F_CREATE);
	bpf_map_update_elem(&notes_by_addr, &key, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&notes_by_addr, &key);
}

/*
 * True when the running task is using this socket: in TCP's own code the
 * socket's lock is "owned" only while a process holds it, and then that process
 * is what runs here. Timers and softirqs find it unowned, or step back.
 */
static __always_inline bool in_user(const struct sock *sk)
{
	if (!sk->sk_lock.owned)
		return false;
	if (have_task_btf) {
		struct task_struct *task = (void *)bpf_get_current_task_btf();

		if (task->flags & PF_KTHREAD)
			return false;
	}
	return true;
}

static __always_inline __u32 current_pid(void)
{
	return bpf_get_current_pid_tgid() >> 32;
}

/*
 * Notes the running task as the socket's owner, if it is using the socket;
 * returns the note. A socket that was handed on belongs to whoever used it last.
 */
static __always_inline struct note *learn(struct sock *sk, __u8 via)
{
	struct note *n = note_of(sk);

	if (!in_user(sk) ||
	    (n && n->pid == current_pid() && via != VIA_CONNECT && via != VIA_LISTEN))
		return n;
	if (!n)
		n = make_note(sk);
	if (!n)
		return NULL;
	n->pid = current_pid();
	n->via = via;
	bpf_get_current_comm(n->comm, sizeof(n->comm));
	return n;
}

static __always_inline void fill_owner(struct record *r, const struct sock *sk,
				       const struct note *n)
{
	if (sk->sk_lock.owned)
		r->flags |= FLAG_USER;
	if (!n)
		return;
	r->owner_pid = n->pid;
	r->owner_via = n->via;
	__builtin_memcpy(r->owner_comm, n->comm, sizeof(r->owner_comm));
}

/* What there is of a socket: requests and time-wait are only a sock_common. */
static __always_inline void fill_sock(struct record *r, struct sock *sk, const struct note *n)
{
	struct tcp_sock *tp;

	fill_net(r, sk->__sk_common.skc_net.net);
	fill_tuple(r, &sk->__sk_common);
	r->sock_addr = (__u64)sk;
	r->sock_cookie = sk->__sk_common.skc_cookie.counter;
	if (r->state == TCP_TIME_WAIT || r->state == TCP_NEW_SYN_RECV)
		return;
	r->sock_inode = inode_of(sk);
	fill_owner(r, sk, n);
	tp = bpf_skc_to_tcp_sock(sk);
	if (tp)
		fill_tcp(r, sk, tp);
}

static __always_inline void fill_segment(struct record *r, const struct sk_buff *skb)
{
	const struct tcp_skb_cb *cb = (void *)skb->cb;

	r->seg_seq = cb->seq;
	r->seg_end_seq = cb->end_seq;
	r->seg_ack_seq = cb->ack_seq;
	r->seg_segs = cb->tcp_gso_segs;
	r->seg_flags = BPF_CORE_READ_BITFIELD(cb, tcp_flags);
}

#endif
