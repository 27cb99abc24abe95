//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The base set: BTF tracepoints on the TCP stack, host-wide, filtered by the
 * socket's network namespace. They copy; what it means is decided in Go.
 */
#include "drop.h"
#include "io.h"
#include "neigh.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Arguments of the tracepoints on this kernel; set by the loader. */
const volatile bool retransmit_has_err = true;     /* 6.17 */
const volatile bool send_reset_has_reason = true;  /* 6.10 */
const volatile bool send_reset_sk_nullable = true; /* 6.12 */
const volatile __u32 arrival_jiffies = 250;        /* silence before an arrival */

/* Carries the enums into BTF, from which Go's constants are generated. */
const volatile struct {
	enum record_kind kind;
	enum program_id program;
	enum receive_why receive;
	enum wire_why wire;
	enum io_why io;
	enum record_flag flag;
	enum owner_via via;
} enums;

static __always_inline bool is_tcp(const struct sock *sk)
{
	return sk->sk_protocol == IPPROTO_TCP;
}

static __always_inline bool watches_sock(const struct sock *sk)
{
	return watches(sk->__sk_common.skc_net.net->ns.inum);
}

SEC("tp_btf/tcp_retransmit_skb")
int tcp_retransmit_skb(__u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	struct sk_buff *skb = (void *)ctx[1];
	int err = retransmit_has_err ? (int)ctx[2] : 0;
	struct record *r;
	struct note *n;

	if (!watches_sock(sk))
		return 0;
	make_cookie(sk);
	n = note_of(sk);
	r = reserve(PROG_RETRANSMIT_SKB, KIND_RETRANSMIT);
	if (r) {
		fill_sock(r, sk, n);
		fill_segment(r, skb);
		r->arg_a = err;
		r->sent_ns = err ? 0 : skb->skb_mstamp_ns;
		submit(r);
	}
	if (!n)
		n = make_note(sk);
	if (n)
		n->run = 1;
	return 0;
}

SEC("tp_btf/tcp_retransmit_synack")
int tcp_retransmit_synack(__u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	struct request_sock *req = (void *)ctx[1];
	struct tcp_request_sock *treq;
	struct record *r;

	if (!watches_sock(sk))
		return 0;
	r = reserve(PROG_RETRANSMIT_SYNACK, KIND_SYNACK);
	if (!r)
		return 0;
	fill_sock(r, sk, NULL);
	fill_tuple(r, &req->__req_common);
	r->retransmits = req->num_retrans;
	r->backoff = BPF_CORE_READ_BITFIELD(req, num_timeout);
	r->rto = bpf_core_field_exists(req->timeout) ? req->timeout : 0;
	/* As icsk_pending: the timer is disarmed while its own handler runs. */
	if (bpf_core_field_exists(req->rsk_timer) && req->rsk_timer.entry.pprev)
		r->pending = 1;
	treq = bpf_skc_to_tcp_request_sock(req);
	if (treq) {
		r->seg_seq = treq->snt_isn;
		r->seg_end_seq = treq->snt_isn + 1;
		r->seg_ack_seq = treq->rcv_isn + 1;
	}
	r->seg_flags = TCPHDR_SYN | TCPHDR_ACK;
	r->seg_segs = 1;
	submit(r);
	return 0;
}

/* tcp_set_state and inet_sk_state_store both end here. */
SEC("tp_btf/inet_sock_set_state")
int inet_sock_set_state(__u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	int oldstate = ctx[1], newstate = ctx[2];
	struct record *r;
	struct note *n;
	__u8 via = VIA_CALL;

	if (!is_tcp(sk) || !watches_sock(sk))
		return 0;
	if (!have_sk_storage &&
	    (oldstate == TCP_CLOSE || (oldstate == TCP_LISTEN && newstate == TCP_SYN_RECV))) {
		__u64 key = (__u64)sk;

		/* A new life: what was here before may have ended unseen. */
		bpf_map_delete_elem(&notes_by_addr, &key);
	}
	make_cookie(sk);
	if (newstate == TCP_SYN_SENT)
		via = VIA_CONNECT;
	else if (newstate == TCP_LISTEN)
		via = VIA_LISTEN;
	else if (newstate == TCP_FIN_WAIT1 || newstate == TCP_LAST_ACK || newstate == TCP_CLOSE)
		via = VIA_CLOSE;
	n = learn(sk, via);
	r = reserve(PROG_SET_STATE, KIND_STATE);
	if (!r)
		return 0;
	fill_sock(r, sk, n);
	r->arg_a = oldstate;
	r->arg_b = newstate;
	submit(r);
	return 0;
}

/*
 * tcp_rcv_established, before the segment is processed. Most segments leave
 * after a few comparisons.
 */
SEC("tp_btf/tcp_probe")
int tcp_probe(__u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	struct sk_buff *skb = (void *)ctx[1];
	const struct tcp_skb_cb *cb = (void *)skb->cb;
	struct tcp_sock *tp;
	struct note *n = NULL;
	struct record *r;
	__u32 seq, end_seq, ack;
	__u8 why = 0;

	if (!may_watch(sk->__sk_common.skc_net.net->ns.inum))
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	seq = cb->seq;
	end_seq = cb->end_seq;
	ack = cb->ack_seq;
	if ((tp->inet_conn.icsk_retransmits || tp->retrans_out || tp->tlp_high_seq ||
	     BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state) >= TCP_CA_Recovery) &&
	    (__s32)(ack - tp->snd_una) > 0 && (__s32)(ack - tp->snd_nxt) <= 0) {
		n = note_of(sk);
		if (n && n->run)
			why |= RECEIVE_ACKED;
	}
	if (end_seq != seq) {
		if ((__u32)bpf_jiffies64() - tp->inet_conn.icsk_ack.lrcvtime >= arrival_jiffies &&
		    (__s32)(end_seq - tp->rcv_nxt) > 0)
			why |= RECEIVE_ARRIVAL;
		if (owner_frozen(sk))
			why |= RECEIVE_FROZEN;
	} else if (seq == tp->rcv_nxt - 1) {
		why |= RECEIVE_PROBE;
	}
	if (!why || !watches_sock(sk))
		return 0;
	if (n)
		n->run = 0;
	make_cookie(sk);
	r = reserve(PROG_TCP_PROBE, KIND_RECEIVE);
	if (!r)
		return 0;
	fill_sock(r, sk, n ? n : note_of(sk));
	fill_segment(r, skb);
	r->seg_segs = 0; /* on receive the field holds something else */
	r->why = why;
	if (why & RECEIVE_ACKED)
		fill_echo(r, skb, tp);
	submit(r);
	return 0;
}

SEC("tp_btf/tcp_receive_reset")
int tcp_receive_reset(__u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	struct record *r;

	if (!watches_sock(sk))
		return 0;
	r = reserve(PROG_RECEIVE_RESET, KIND_RESET_RECEIVED);
	if (!r)
		return 0;
	fill_sock(r, sk, note_of(sk));
	submit(r);
	return 0;
}

SEC("tp_btf/tcp_send_reset")
int tcp_send_reset(__u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	struct sk_buff *skb = (void *)ctx[1];
	struct record *r;
	struct net *net = NULL;

	if (sk)
		net = sk->__sk_common.skc_net.net;
	else if (skb && skb->dev)
		net = skb->dev->nd_net.net;
	if (!net || !watches(net->ns.inum))
		return 0;
	/* Without its addresses it says less than what the edge shows of it. */
	if (!have_rdonly_cast && (!sk || sk->__sk_common.skc_state == TCP_LISTEN))
		return 0;
	r = reserve(PROG_SEND_RESET, KIND_RESET_SENT);
	if (!r)
		return 0;
	if (sk)
		fill_sock(r, sk, note_of(sk));
	else
		fill_net(r, net);
	if (skb) {
		fill_segment(r, skb);
		r->seg_segs = 1;
		/* A listener answers for a connection that it does not have. */
		if (!sk || sk->__sk_common.skc_state == TCP_LISTEN) {
			r->flags |= FLAG_NO_SOCK;
			fill_addresses(r, skb, true);
		}
	}
	if (send_reset_has_reason)
		r->arg_b = (int)ctx[2];
	submit(r);
	return 0;
}

SEC("tp_btf/inet_sk_error_report")
int inet_sk_error_report(__u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	struct record *r;

	if (!is_tcp(sk) || !watches_sock(sk))
		return 0;
	r = reserve(PROG_ERROR_REPORT, KIND_ERROR);
	if (!r)
		return 0;
	fill_sock(r, sk, note_of(sk));
	submit(r);
	return 0;
}

SEC("tp_btf/tcp_destroy_sock")
int tcp_destroy_sock(__u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	__u64 key = (__u64)sk;
	struct record *r;

	if (!watches_sock(sk))
		return 0;
	r = reserve(PROG_DESTROY_SOCK, KIND_DESTROY);
	if (r) {
		fill_net(r, sk->__sk_common.skc_net.net);
		r->sock_addr = key;
		submit(r);
	}
	if (!have_sk_storage)
		bpf_map_delete_elem(&notes_by_addr, &key);
	return 0;
}

/*
 * A process reads: the first hook in process context on an accepted socket.
 * Recorded when it is not who used the socket before.
 */
SEC("tp_btf/tcp_rcv_space_adjust")
int tcp_rcv_space_adjust(__u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	struct record *r;
	struct note *n;

	if (!may_watch(sk->__sk_common.skc_net.net->ns.inum))
		return 0;
	n = note_of(sk);
	if ((n && n->pid == current_pid()) || !in_user(sk) || !watches_sock(sk))
		return 0;
	make_cookie(sk);
	n = learn(sk, VIA_RECV);
	if (!n)
		return 0;
	r = reserve(PROG_RCV_SPACE_ADJUST, KIND_OWNER);
	if (!r)
		return 0;
	fill_sock(r, sk, n);
	submit(r);
	return 0;
}

/* Sockets that exist: read from inside the namespace, into the same ring as the events. */
SEC("iter/tcp")
int iter_tcp(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct tcp_sock *tp;
	struct sock *sk;
	struct record *r;

	if (!skc)
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	sk = (struct sock *)tp;
	make_cookie(sk);
	r = reserve(PROG_ITER_TCP, KIND_INVENTORY);
	if (!r)
		return 0;
	fill_sock(r, sk, NULL);
	submit(r);
	return 0;
}
