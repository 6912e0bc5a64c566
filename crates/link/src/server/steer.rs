//! Tells the kernel which socket of a group of UDP sockets takes a QUIC packet: the first octet of the destination connection id, modulo the shards.
//! Used by [`super::bind`]; [`super::ids`] makes the ids to match. RFC 8999 §5 (where the id stands), socket(7) SO_ATTACH_REUSEPORT_CBPF.
//!
//! So a connection stays with its shard when the client's address changes. The kernel may join packets of one source port into one delivery
//! (GRO); those of a second connection from that port then reach the wrong shard, which drops them as the network might.

use std::{io, net::UdpSocket, os::fd::AsRawFd};

/// The program's instructions: classic BPF over the UDP payload. A load beyond the packet's end ends the program with shard 0.
fn program(shards: u16) -> [libc::sock_filter; 7] {
    const LOAD_OCTET: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    const MODULO: u32 = libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K;
    const IF_ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    [
        step(LOAD_OCTET, 0, 0),
        step(IF_ANY_BIT, 2, 0x80),
        // The long header: flags, four octets of version, the id's length, the id.
        step(LOAD_OCTET, 0, 6),
        step(libc::BPF_JMP | libc::BPF_JA, 0, 1),
        // The short header: flags, the id.
        step(LOAD_OCTET, 0, 1),
        step(MODULO, 0, u32::from(shards)),
        step(libc::BPF_RET | libc::BPF_A, 0, 0),
    ]
}

/// One instruction; `skip` is how many to skip if a condition does not hold.
fn step(code: u32, skip: u8, operand: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: u16::try_from(code).expect("every code of classic BPF has 16 bits"),
        jt: 0,
        jf: skip,
        k: operand,
    }
}

/// Attaches the program to the group that `member` belongs to. Shards are counted in the order in which the sockets were bound.
pub(super) fn attach(member: &UdpSocket, shards: u16) -> io::Result<()> {
    let mut steps = program(shards);
    let program = libc::sock_fprog {
        len: u16::try_from(steps.len()).map_err(io::Error::other)?,
        filter: steps.as_mut_ptr(),
    };
    let length = libc::socklen_t::try_from(size_of_val(&program)).map_err(io::Error::other)?;
    #[expect(
        unsafe_code,
        reason = "no crate that we have offers this socket option"
    )]
    // SAFETY: the pointers are to locals that outlive the call, with their true lengths; the kernel copies and checks the program.
    let answer = unsafe {
        libc::setsockopt(
            member.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            length,
        )
    };
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
