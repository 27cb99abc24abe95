/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * ICMP errors that quote a TCP segment of this namespace: whoever could not
 * deliver it says so, and the socket hears of it.
 */
#ifndef SOCKWATCH_ICMP_H
#define SOCKWATCH_ICMP_H

#include "headers.h"

static __always_inline bool icmp_error(__u8 type)
{
	return type == ICMP_DEST_UNREACH || type == ICMP_SOURCE_QUENCH || type == ICMP_REDIRECT ||
	       type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETERPROB;
}

/* Writes the record, but for who sent the error and what it quotes. */
static __always_inline struct record *reserve_icmp(__u16 family, __u8 type, __u8 code, __u32 rest)
{
	struct record *r = reserve(PROG_WIRE, KIND_WIRE);

	if (!r)
		return NULL;
	r->why = WIRE_ICMP;
	r->flags = FLAG_NO_SOCK;
	r->family = family;
	r->arg_a = type;
	r->arg_b = code;
	r->seg_ack_seq = rest;
	return r;
}

/* At LOCAL_IN: the error is in the linear part, as far as it is looked at, or is passed over. */
static __always_inline void read_icmp(const struct sk_buff *skb, const struct net *net)
{
	const unsigned char *head = skb->head, *outer = head + skb->network_header, *icmp, *inner,
			    *tcp, *end;
	const struct ipv6hdr *from6, *ip6;
	const struct iphdr *from, *ip;
	__u16 type_code;
	__u8 protocol;
	struct record *r;

	if (!have_rdonly_cast)
		return;
	end = skb->data + skb->len - skb->data_len;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		from = cast_to(iphdr, outer);
		if (from->protocol != IPPROTO_ICMP)
			return;
		icmp = outer + BPF_CORE_READ_BITFIELD(from, ihl) * 4;
		inner = icmp + 8;
		ip = cast_to(iphdr, inner);
		tcp = inner + BPF_CORE_READ_BITFIELD(ip, ihl) * 4;
		protocol = ip->protocol;
	} else {
		from6 = cast_to(ipv6hdr, outer);
		if (from6->nexthdr != IPPROTO_ICMPV6)
			return;
		icmp = outer + 40;
		inner = icmp + 8;
		ip6 = cast_to(ipv6hdr, inner);
		tcp = inner + 40;
		protocol = ip6->nexthdr;
	}
	if (tcp + 8 > end || protocol != IPPROTO_TCP)
		return;
	type_code = bpf_ntohs(cast_to(tcphdr, icmp)->source);
	if (skb->protocol == bpf_htons(ETH_P_IP) ? !icmp_error(type_code >> 8) :
						   type_code >> 8 > ICMPV6_ERRORS)
		return;
	if (!watches(net->ns.inum))
		return;
	r = reserve_icmp(skb->protocol == bpf_htons(ETH_P_IP) ? AF_INET : AF_INET6, type_code >> 8,
			 type_code, bpf_ntohl(cast_to(tcphdr, icmp)->seq));
	if (!r)
		return;
	fill_net(r, net);
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		ip = cast_to(iphdr, inner);
		*(__u16 *)(r->local_addr + 10) = 0xffff;
		*(__u16 *)(r->remote_addr + 10) = 0xffff;
		*(__u16 *)(r->owner_comm + 10) = 0xffff;
		*(__u32 *)(r->local_addr + 12) = ip->saddr;
		*(__u32 *)(r->remote_addr + 12) = ip->daddr;
		*(__u32 *)(r->owner_comm + 12) = cast_to(iphdr, outer)->saddr;
	} else {
		ip6 = cast_to(ipv6hdr, inner);
		*(struct in6_addr *)r->local_addr = ip6->saddr;
		*(struct in6_addr *)r->remote_addr = ip6->daddr;
		*(struct in6_addr *)r->owner_comm = cast_to(ipv6hdr, outer)->saddr;
	}
	r->local_port = bpf_ntohs(cast_to(tcphdr, tcp)->source);
	r->remote_port = bpf_ntohs(cast_to(tcphdr, tcp)->dest);
	r->seg_seq = bpf_ntohl(cast_to(tcphdr, tcp)->seq);
	submit(r);
}

#endif
