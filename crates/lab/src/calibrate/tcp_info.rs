//! What the kernel knows about a TCP connection: `TCP_INFO` (tcp(7)). `flows` asks how often something was sent again.

use std::{io, mem, net::TcpStream, os::fd::AsRawFd};

/// Segments that this end sent again.
pub(super) fn retransmissions(stream: &TcpStream) -> io::Result<u32> {
    // SAFETY: the structure consists of integers, for which all zeros are valid.
    #[expect(unsafe_code, reason = "a C structure that the kernel fills")]
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut size = libc::socklen_t::try_from(size_of_val(&info)).map_err(io::Error::other)?;
    let to = (&raw mut info).cast();
    // SAFETY: the descriptor is open; the kernel writes at most `size` octets to `info`, which has so many.
    #[expect(unsafe_code, reason = "no safe wrapper reads TCP_INFO")]
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            to,
            &raw mut size,
        )
    };
    match result {
        0 => Ok(info.tcpi_total_retrans),
        _ => Err(io::Error::last_os_error()),
    }
}
