// SPDX-License-Identifier: MIT OR GPL-2.0-only
// Forwarded mode in the kernel: packets of QUIC connections whose rules the relay has entered get another id, other addresses and ports, and leave by
// where the routing table says, before the kernel has made anything of them. Whatever is not exactly as its rule says goes on to the relay's sockets.
// The maps are filled by crates/relay/src/forward/kernel.rs, which has the same layouts; `build` beside this file makes forward.o of it.
// draft-ietf-masque-quic-proxy with the identity transform; RFC 1624 (how a checksum follows a change).

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

// The helpers that it calls, by their numbers in linux/bpf.h.
static void *(*const map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static u64 (*const ktime_get_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static long (*const fib_lookup)(void *ctx, struct bpf_fib_lookup *params, int len, u32 flags) = (void *)BPF_FUNC_fib_lookup;
static long (*const redirect_map)(void *map, u64 key, u64 flags) = (void *)BPF_FUNC_redirect_map;

// Numbers of more than one byte are in network order, but for those that say otherwise.

// What a packet must have. IPv4 addresses are mapped into IPv6.
struct key {
	u32 to[4];
	u32 from[4];
	u16 to_port;
	u16 from_port;
	u32 id[2]; // the first eight bytes of the id
};

// What becomes of it.
struct rule {
	u64 expires; // CLOCK_MONOTONIC, in nanoseconds; host order
	u32 slot;    // in `counts`; host order
	u16 change;  // what the UDP checksum's sum gains by the new addresses, ports and id
	u16 pseudo;  // the sum of the old addresses and the protocol
	u32 to[4];
	u32 from[4];
	u16 to_port;
	u16 from_port;
	u32 id[2];
	// The rest of an id of up to 20 bytes: what it must be where `mask` has ones, and what is changed about it.
	u32 old[3];
	u32 mask[3];
	u32 flip[3];
};

struct count {
	u64 packets;
	u64 bytes; // of UDP payload
};

// Why a packet of a rule is left to the relay; the names in kernel.rs stand in the same order.
enum left { LEFT_EXPIRED, LEFT_OTHER_ID, LEFT_UNFINISHED, LEFT_NO_ROUTE, LEFT_INTERFACE, LEFT_REASONS };

struct map {
	u32 type, key_size, value_size, max_entries, map_flags;
};

#define RULES 65536

struct map SECTION("maps") RULES_MAP = {BPF_MAP_TYPE_HASH, sizeof(struct key), sizeof(struct rule), RULES, BPF_F_NO_PREALLOC};
struct map SECTION("maps") COUNTS = {BPF_MAP_TYPE_ARRAY, sizeof(u32), sizeof(struct count), RULES, 0};
struct map SECTION("maps") LEFT = {BPF_MAP_TYPE_ARRAY, sizeof(u32), sizeof(u64), LEFT_REASONS, 0};
// Where packets may leave other than where they came.
struct map SECTION("maps") INTERFACES = {BPF_MAP_TYPE_DEVMAP_HASH, sizeof(u32), sizeof(u32), 64, 0};

struct ipv4 {
	u8 version_ihl, tos;
	u16 tot_len, id, frag_off;
	u8 ttl, protocol;
	u16 check;
	u32 saddr, daddr;
};

struct ipv6 {
	u32 flow;
	u16 payload_len;
	u8 nexthdr, hop_limit;
	u32 saddr[4], daddr[4];
};

struct udp {
	u16 source, dest, len, check;
};

// What every packet of QUIC version 1 with a short header has: what protects the header is a sample that ends 20 bytes behind the id.
struct quic {
	u8 first;
	u8 id[20];
};

// What was found out about a packet.
struct packet {
	struct ethhdr *eth;
	struct udp *udp;
	u8 *id;
	u32 total; // the IP packet's length, in bytes; host order
	u32 payload;
};

#define HOPS 64
#define DONT_FRAGMENT __builtin_bswap16(0x4000)
#define MORE_OR_OFFSET __builtin_bswap16(0x3fff)
#define MAPPED __builtin_bswap32(0xffff)
#define ECN 3

INLINE u16 fold(u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

INLINE int leave(u32 reason)
{
	u64 *count = map_lookup(&LEFT, &reason);
	if (count)
		__sync_fetch_and_add(count, 1);
	return XDP_PASS;
}

// Whether there is a datagram with a short header, as long as its headers say.
INLINE int read_udp(struct packet *packet, void *at, void *end, u32 length)
{
	struct udp *udp = at;
	struct quic *quic = (void *)(udp + 1);
	if ((void *)(quic + 1) > end || __builtin_bswap16(udp->len) != length)
		return 0;
	if (quic->first & 0x80)
		return 0;
	packet->udp = udp;
	packet->id = quic->id;
	packet->payload = length - sizeof(*udp);
	return 1;
}

INLINE void copy(u32 *to, const u32 *from)
{
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = from[3];
}

INLINE void read_ids(struct key *key, const struct packet *packet)
{
	key->to_port = packet->udp->dest;
	key->from_port = packet->udp->source;
	key->id[0] = *(u32 *)packet->id;
	key->id[1] = *(u32 *)(packet->id + 4);
}

// The rule that a packet may be forwarded by; else null.
INLINE struct rule *find(const struct key *key, const struct packet *packet)
{
	struct rule *rule = map_lookup(&RULES_MAP, key);
	if (!rule)
		return 0;
	if (rule->expires < ktime_get_ns()) {
		leave(LEFT_EXPIRED);
		return 0;
	}
	const u32 *rest = (u32 *)(packet->id + 8);
	u32 other = (rest[0] ^ rule->old[0]) & rule->mask[0];
	other |= (rest[1] ^ rule->old[1]) & rule->mask[1];
	other |= (rest[2] ^ rule->old[2]) & rule->mask[2];
	if (other) {
		leave(LEFT_OTHER_ID);
		return 0;
	}
	// A sender on this machine leaves the sum of the payload to a card that never comes: there is only that of the pseudo-header.
	if (packet->udp->check == fold((u32)rule->pseudo + packet->udp->len)) {
		leave(LEFT_UNFINISHED);
		return 0;
	}
	return rule;
}

// Where it goes; XDP_PASS when that is not known here.
INLINE int route(struct xdp_md *ctx, const struct rule *rule, struct bpf_fib_lookup *fib)
{
	fib->l4_protocol = IPPROTO_UDP;
	fib->sport = rule->from_port;
	fib->dport = rule->to_port;
	fib->ifindex = ctx->ingress_ifindex;
	if (fib_lookup(ctx, fib, sizeof(*fib), 0) != BPF_FIB_LKUP_RET_SUCCESS)
		return leave(LEFT_NO_ROUTE);
	if (fib->ifindex == ctx->ingress_ifindex)
		return XDP_TX;
	int action = redirect_map(&INTERFACES, fib->ifindex, XDP_PASS);
	return action == XDP_REDIRECT ? action : leave(LEFT_INTERFACE);
}

// All but the IP header.
INLINE void rewrite(struct packet *packet, const struct rule *rule, const struct bpf_fib_lookup *fib)
{
	__builtin_memcpy(packet->eth->h_dest, fib->dmac, ETH_ALEN);
	__builtin_memcpy(packet->eth->h_source, fib->smac, ETH_ALEN);
	packet->udp->source = rule->from_port;
	packet->udp->dest = rule->to_port;
	if (packet->udp->check) {
		u16 check = ~fold((u32)(u16)~packet->udp->check + rule->change);
		packet->udp->check = check ? check : 0xffff;
	}
	*(u32 *)packet->id = rule->id[0];
	*(u32 *)(packet->id + 4) = rule->id[1];
	u32 *rest = (u32 *)(packet->id + 8);
	rest[0] ^= rule->flip[0];
	rest[1] ^= rule->flip[1];
	rest[2] ^= rule->flip[2];
	u32 slot = rule->slot;
	struct count *count = map_lookup(&COUNTS, &slot);
	if (count) {
		__sync_fetch_and_add(&count->packets, 1);
		__sync_fetch_and_add(&count->bytes, packet->payload);
	}
}

INLINE int forward_ipv4(struct xdp_md *ctx, struct packet *packet, struct ipv4 *ip, void *end)
{
	if ((void *)(ip + 1) > end || ip->version_ihl != 0x45 || ip->protocol != IPPROTO_UDP || ip->frag_off & MORE_OR_OFFSET)
		return XDP_PASS;
	packet->total = __builtin_bswap16(ip->tot_len);
	if (!read_udp(packet, ip + 1, end, packet->total - sizeof(*ip)))
		return XDP_PASS;
	struct key key = {.to = {0, 0, MAPPED, ip->daddr}, .from = {0, 0, MAPPED, ip->saddr}};
	read_ids(&key, packet);
	struct rule *rule = find(&key, packet);
	if (!rule)
		return XDP_PASS;
	struct bpf_fib_lookup fib = {.family = 2 /* AF_INET */, .tot_len = packet->total};
	fib.ipv4_src = rule->from[3];
	fib.ipv4_dst = rule->to[3];
	int action = route(ctx, rule, &fib);
	if (action == XDP_PASS)
		return action;
	rewrite(packet, rule, &fib);
	// As the relay's socket would make it: nothing of the old header goes on but the marks of congestion.
	ip->tos &= ECN;
	ip->id = 0;
	ip->frag_off = DONT_FRAGMENT;
	ip->ttl = HOPS;
	ip->saddr = rule->from[3];
	ip->daddr = rule->to[3];
	ip->check = 0;
	u32 sum = 0;
	u16 *word = (u16 *)ip;
#pragma unroll
	for (int i = 0; i < 10; i++)
		sum += word[i];
	ip->check = ~fold(sum);
	return action;
}

INLINE int forward_ipv6(struct xdp_md *ctx, struct packet *packet, struct ipv6 *ip, void *end)
{
	if ((void *)(ip + 1) > end || ip->nexthdr != IPPROTO_UDP)
		return XDP_PASS;
	u32 length = __builtin_bswap16(ip->payload_len);
	packet->total = length + sizeof(*ip);
	if (!read_udp(packet, ip + 1, end, length) || !packet->udp->check)
		return XDP_PASS;
	struct key key;
	copy(key.to, ip->daddr);
	copy(key.from, ip->saddr);
	read_ids(&key, packet);
	struct rule *rule = find(&key, packet);
	if (!rule)
		return XDP_PASS;
	struct bpf_fib_lookup fib = {.family = 10 /* AF_INET6 */, .tot_len = packet->total};
	copy(fib.ipv6_src, rule->from);
	copy(fib.ipv6_dst, rule->to);
	int action = route(ctx, rule, &fib);
	if (action == XDP_PASS)
		return action;
	rewrite(packet, rule, &fib);
	// Version 6, no flow label, and of the traffic class the marks of congestion.
	ip->flow = __builtin_bswap32(6u << 28) | (ip->flow & __builtin_bswap32(ECN << 20));
	ip->hop_limit = HOPS;
	copy(ip->saddr, rule->from);
	copy(ip->daddr, rule->to);
	return action;
}

int SECTION("xdp") forward(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct packet packet = {.eth = (void *)(long)ctx->data};
	void *ip = packet.eth + 1;
	if (ip > end)
		return XDP_PASS;
	if (packet.eth->h_proto == __builtin_bswap16(ETH_P_IP))
		return forward_ipv4(ctx, &packet, ip, end);
	if (packet.eth->h_proto == __builtin_bswap16(ETH_P_IPV6))
		return forward_ipv6(ctx, &packet, ip, end);
	return XDP_PASS;
}

// bpf_fib_lookup is for programs under the GPL.
char LICENSE[] SECTION("license") = "Dual MIT/GPL";
