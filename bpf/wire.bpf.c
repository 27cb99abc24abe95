//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Attached inside a watched namespace, for what no tracepoint shows: probes
 * sent, RST segments that no socket takes, and acknowledgements that arrive in
 * states tcp_probe does not look at.
 *
 * wire_netfilter is a BPF netfilter link at LOCAL_IN and LOCAL_OUT (6.4).
 * wire_packet is a socket filter on an AF_PACKET socket, for older kernels; it
 * sees no socket, so it hands over every segment that may be a probe.
 */
#include "headers.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The namespace of the AF_PACKET socket: a socket filter cannot ask. */
const volatile __u32 packet_netns_inode;
const volatile __u64 packet_netns_cookie;

SEC("netfilter")
int wire_netfilter(struct bpf_nf_ctx *ctx)
{
	const struct nf_hook_state *state = ctx->state;
	struct sk_buff *skb = ctx->skb;
	bool out = state->hook == NF_INET_LOCAL_OUT;
	const struct sock *sk = NULL;
	const struct tcp_sock *tp = NULL;
	struct segment seg;
	struct record *r;
	__u8 why = 0;

	if (!read_segment(&seg, skb))
		return 1;
	if (seg.flags & TCPHDR_RST) {
		why = WIRE_RST;
	} else if (!(seg.flags & (TCPHDR_SYN | TCPHDR_FIN)) && (seg.flags & TCPHDR_ACK)) {
		__u8 sk_state;

		/* On the way in it is the socket found early, if it was. */
		sk = out ? state->sk : skb->sk;
		if (!sk)
			return 1;
		sk_state = sk->__sk_common.skc_state;
		if (sk_state == TCP_CLOSE || sk_state == TCP_LISTEN || sk_state == TCP_TIME_WAIT ||
		    sk_state == TCP_NEW_SYN_RECV || sk_state == TCP_SYN_SENT)
			return 1;
		if (sk->sk_type != SOCK_STREAM || sk->sk_protocol != IPPROTO_TCP)
			return 1;
		tp = cast_to(tcp_sock, sk);
		if (out) {
			if (seg.len == 0 && seg.seq == tp->snd_una - 1)
				why = WIRE_PROBE;
		} else if (sk_state != TCP_ESTABLISHED) {
			if (seg.len == 0 && seg.seq == tp->rcv_nxt - 1)
				why = WIRE_PROBE;
			if ((tp->inet_conn.icsk_retransmits || tp->retrans_out || tp->tlp_high_seq) &&
			    (__s32)(seg.ack - tp->snd_una) > 0 && (__s32)(seg.ack - tp->snd_nxt) <= 0)
				why |= WIRE_ACKED;
		}
	}
	if (!why)
		return 1;
	if (!watches(state->net->ns.inum))
		return 1;
	r = reserve(PROG_WIRE, KIND_WIRE);
	if (!r)
		return 1;
	fill_net(r, state->net);
	if (tp) {
		fill_tuple(r, &sk->__sk_common);
		r->sock_addr = (__u64)sk;
		r->sock_cookie = sk->__sk_common.skc_cookie.counter;
		r->sock_inode = inode_of(sk);
		fill_tcp(r, sk, tp);
		fill_owner(r, sk, NULL);
	} else {
		r->flags |= FLAG_NO_SOCK;
		fill_addresses(r, skb, !out);
	}
	r->seg_seq = seg.seq;
	r->seg_end_seq = seg.seq + seg.len;
	r->seg_ack_seq = seg.ack;
	r->seg_flags = seg.flags;
	r->seg_segs = 1;
	r->why = why;
	if (out)
		r->flags |= FLAG_OUT;
	submit(r);
	return 1;
}

SEC("socket")
int wire_packet(struct __sk_buff *skb)
{
	bool out = skb->pkt_type == PACKET_OUTGOING;
	__u8 why = 0, ip[40], tcp[20], next;
	__u32 off, total, len;
	struct record *r;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, 0, ip, 20))
			return 0;
		off = (ip[0] & 0xf) * 4;
		total = ip[2] << 8 | ip[3];
		next = ip[9];
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, 0, ip, 40))
			return 0;
		off = 40;
		total = 40 + (ip[4] << 8 | ip[5]);
		next = ip[6];
	} else {
		return 0;
	}
	if (next != IPPROTO_TCP || bpf_skb_load_bytes(skb, off, tcp, 20))
		return 0;
	len = total - off - (tcp[12] >> 4) * 4;
	if (tcp[13] & TCPHDR_RST)
		why = WIRE_RST;
	else if (len == 0 && (tcp[13] & ~TCPHDR_PSH) == TCPHDR_ACK)
		why = WIRE_PROBE;
	if (!why)
		return 0;
	r = reserve(PROG_WIRE, KIND_WIRE);
	if (!r)
		return 0;
	r->netns_inode = packet_netns_inode;
	r->net_cookie = packet_netns_cookie;
	r->flags = FLAG_NO_SOCK | (out ? FLAG_OUT : 0);
	if (off == 40 && next == IPPROTO_TCP && skb->protocol == bpf_htons(ETH_P_IPV6)) {
		r->family = AF_INET6;
		__builtin_memcpy(out ? r->local_addr : r->remote_addr, ip + 8, 16);
		__builtin_memcpy(out ? r->remote_addr : r->local_addr, ip + 24, 16);
	} else {
		r->family = AF_INET;
		*(__u16 *)(r->local_addr + 10) = 0xffff;
		*(__u16 *)(r->remote_addr + 10) = 0xffff;
		__builtin_memcpy((out ? r->local_addr : r->remote_addr) + 12, ip + 12, 4);
		__builtin_memcpy((out ? r->remote_addr : r->local_addr) + 12, ip + 16, 4);
	}
	r->local_port = out ? tcp[0] << 8 | tcp[1] : tcp[2] << 8 | tcp[3];
	r->remote_port = out ? tcp[2] << 8 | tcp[3] : tcp[0] << 8 | tcp[1];
	r->seg_seq = bpf_ntohl(*(__u32 *)(tcp + 4));
	r->seg_end_seq = r->seg_seq + len;
	r->seg_ack_seq = bpf_ntohl(*(__u32 *)(tcp + 8));
	r->seg_flags = tcp[13];
	r->seg_segs = 1;
	r->why = why;
	submit(r);
	return 0;
}
