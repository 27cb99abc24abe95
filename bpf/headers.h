/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Packet headers of a struct sk_buff, read in place through bpf_rdonly_cast:
 * loads that fault read zero, and no helper that lockdown refuses is needed.
 * Only the linear part is read; TCP has pulled its header there by then.
 */
#ifndef SOCKWATCH_HEADERS_H
#define SOCKWATCH_HEADERS_H

#include "sock.h"

struct segment {
	__u32 seq;
	__u32 ack;
	__u32 len;
	__u16 window;
	__u8 flags;
};

#define cast_to(type, p) \
	((const struct type *)bpf_rdonly_cast(p, bpf_core_type_id_kernel(struct type)))

/*
 * Where the TCP header is. Not skb->transport_header: the packet filter's
 * reject makes segments in which that is the network header's. IPv6 extension
 * headers are not followed.
 */
static __always_inline const unsigned char *tcp_header(const struct sk_buff *skb)
{
	const unsigned char *net = skb->head + skb->network_header;
	const struct iphdr *ip = cast_to(iphdr, net);

	if (skb->protocol != bpf_htons(ETH_P_IP))
		return net + 40;
	return net + BPF_CORE_READ_BITFIELD(ip, ihl) * 4;
}

/* Whether it is a TCP socket that has a connection. */
static __always_inline bool is_connection(const struct sock *sk)
{
	__u8 state = sk->__sk_common.skc_state;

	return state != TCP_TIME_WAIT && state != TCP_NEW_SYN_RECV && state != TCP_LISTEN &&
	       sk->sk_type == SOCK_STREAM && sk->sk_protocol == IPPROTO_TCP;
}

/* One past the last sequence number of a segment. */
static __always_inline __u32 end_of(const struct segment *seg)
{
	return seg->seq + seg->len + !!(seg->flags & TCPHDR_SYN) + !!(seg->flags & TCPHDR_FIN);
}

/* Fills the addresses and ports of a segment that no socket took. */
static __always_inline void fill_addresses(struct record *r, const struct sk_buff *skb, bool in)
{
	const unsigned char *head;
	const struct tcphdr *th;
	__u16 source, dest;

	if (!have_rdonly_cast)
		return;
	head = skb->head;
	th = cast_to(tcphdr, tcp_header(skb));
	source = bpf_ntohs(th->source);
	dest = bpf_ntohs(th->dest);
	r->local_port = in ? dest : source;
	r->remote_port = in ? source : dest;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		const struct iphdr *ip = cast_to(iphdr, head + skb->network_header);

		r->family = AF_INET;
		*(__u16 *)(r->local_addr + 10) = 0xffff;
		*(__u16 *)(r->remote_addr + 10) = 0xffff;
		*(__u32 *)(r->local_addr + 12) = in ? ip->daddr : ip->saddr;
		*(__u32 *)(r->remote_addr + 12) = in ? ip->saddr : ip->daddr;
	} else {
		const struct ipv6hdr *ip6 = cast_to(ipv6hdr, head + skb->network_header);

		r->family = AF_INET6;
		*(struct in6_addr *)r->local_addr = in ? ip6->daddr : ip6->saddr;
		*(struct in6_addr *)r->remote_addr = in ? ip6->saddr : ip6->daddr;
	}
}

/*
 * When what an acknowledgement answers was sent, by the timestamp that it
 * echoes: arg_a, CLOCK_MONOTONIC in ms, if arg_b. Only where the option is the
 * first and aligned, as the kernel's own fast path wants it.
 */
static __always_inline void fill_echo(struct record *r, const struct sk_buff *skb,
				      const struct tcp_sock *tp)
{
	const unsigned char *tcp;
	const struct tcphdr *options; /* as if: its words are the option's */

	if (!have_rdonly_cast)
		return;
	if (bpf_core_field_exists(tp->tcp_usec_ts) && BPF_CORE_READ_BITFIELD(tp, tcp_usec_ts))
		return;
	tcp = tcp_header(skb);
	options = cast_to(tcphdr, tcp + 20);
	if (((cast_to(tcphdr, tcp + 8)->seq >> 4) & 0xf) < 8 ||
	    options->source != bpf_htons(0x0101) || options->dest != bpf_htons(0x080a))
		return;
	r->arg_a = bpf_ntohl(options->ack_seq) - tp->tsoffset;
	r->arg_b = 1;
}

/* Reads a TCP segment at LOCAL_IN or LOCAL_OUT; false if it is something else. */
static __always_inline bool read_segment(struct segment *seg, const struct sk_buff *skb)
{
	const unsigned char *net, *tcp;
	const struct tcphdr *th;
	__u32 word;

	if (!have_rdonly_cast)
		return false;
	net = skb->head + skb->network_header;
	tcp = tcp_header(skb);
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (cast_to(iphdr, net)->protocol != IPPROTO_TCP)
			return false;
	} else if (cast_to(ipv6hdr, net)->nexthdr != IPPROTO_TCP) {
		return false;
	}
	th = cast_to(tcphdr, tcp);
	seg->seq = bpf_ntohl(th->seq);
	seg->ack = bpf_ntohl(th->ack_seq);
	seg->window = bpf_ntohs(th->window);
	/* Data offset and flags are bitfields in the kernel's struct: its word 12, by shifting the view. */
	word = cast_to(tcphdr, tcp + 8)->seq;
	seg->flags = word >> 8;
	seg->len = skb->len - (tcp - net) - ((word >> 4) & 0xf) * 4;
	return true;
}

#endif
