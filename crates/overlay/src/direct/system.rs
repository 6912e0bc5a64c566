//! What the systems do not have in common, of sockets that all of them have. Elsewhere than on Linux no test of ours has run.

#[cfg(unix)]
pub(super) use std::os::fd::{AsFd as AsSocket, BorrowedFd as BorrowedSocket};
#[cfg(windows)]
pub(super) use std::os::windows::io::{AsSocket, BorrowedSocket};
use std::{io, time::Duration};

#[cfg(target_os = "linux")]
pub(super) use self::linux::*;
#[cfg(not(target_os = "linux"))]
pub(super) use self::others::*;

/// The socket itself, which others than its owner are handed.
pub(super) fn borrow(socket: &impl AsSocket) -> BorrowedSocket<'_> {
    #[cfg(unix)]
    return socket.as_fd();
    #[cfg(windows)]
    return socket.as_socket();
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{os::fd::AsRawFd, sync::LazyLock};

    use rustix::net::sockopt;
    use socket2::{Domain, SockRef, Socket, Type};

    use super::{AsSocket, Duration, io};

    /// Sets an option for which no crate of ours has a safe wrapper.
    ///
    /// # Errors
    /// The system's.
    #[expect(unsafe_code, reason = "the option has no safe wrapper")]
    pub(in crate::direct) fn set_option(
        socket: &impl AsSocket,
        level: libc::c_int,
        option: libc::c_int,
        value: libc::c_int,
    ) -> io::Result<()> {
        let len = libc::socklen_t::try_from(size_of_val(&value)).map_err(io::Error::other)?;
        // SAFETY: the descriptor is open, and the value is an int that outlives the call, as these options want it.
        let set = unsafe {
            libc::setsockopt(
                socket.as_fd().as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                len,
            )
        };
        match set {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Keeps UDP_GRO in use while the process lives. The first socket that has it makes the kernel rewrite its own code on every core,
    /// and so does the last one that goes: who opens flows one after the other would pay for that each time, and all programs beside.
    pub(in crate::direct) fn hold_receive_offload() {
        static HELD: LazyLock<[io::Result<Socket>; 2]> = LazyLock::new(|| {
            [Domain::IPV4, Domain::IPV6].map(|domain| {
                let socket = Socket::new(domain, Type::DGRAM, None)?;
                set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
                Ok(socket)
            })
        });
        LazyLock::force(&HELD);
    }

    /// Has the kernel not say of each packet at which of our addresses it arrived.
    pub(in crate::direct) fn omit_destinations(
        socket: &impl AsSocket,
        is_v4: bool,
    ) -> io::Result<()> {
        let (level, option) = if is_v4 {
            (libc::IPPROTO_IP, libc::IP_PKTINFO)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)
        };
        set_option(socket, level, option, 0)
    }

    /// Marks all packets of a socket, by this process's own rights.
    pub(in crate::direct) fn mark(socket: &impl AsSocket, mark: u32) -> io::Result<()> {
        SockRef::from(socket).set_mark(mark)
    }

    /// Gives a socket this much buffer in each direction, whatever the system's limit.
    pub(in crate::direct) fn force_buffers(socket: &impl AsSocket, bytes: usize) -> io::Result<()> {
        sockopt::set_socket_recv_buffer_size_force(socket, bytes)?;
        Ok(sockopt::set_socket_send_buffer_size_force(socket, bytes)?)
    }

    /// The MTU of a connected socket's route, as far as the kernel knows.
    pub(in crate::direct) fn path_mtu(socket: &impl AsSocket, is_v4: bool) -> Option<u32> {
        let mtu = if is_v4 {
            sockopt::ip_mtu(socket)
        } else {
            sockopt::ipv6_mtu(socket)
        };
        mtu.ok()
    }

    /// Lets a socket have an address that is no interface's.
    pub(in crate::direct) fn allow_any_ipv6(socket: &impl AsSocket) -> io::Result<()> {
        Ok(sockopt::set_ipv6_freebind(socket, true)?)
    }

    /// Has the kernel choose the port of a socket that is bound to an address when it connects: another target may have the same port then.
    pub(in crate::direct) fn choose_port_late(socket: &impl AsSocket) -> io::Result<()> {
        set_option(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
    }

    /// Ends a TCP connection whose other end has been silent for so long.
    pub(in crate::direct) fn limit_silence(
        socket: &impl AsSocket,
        most: Duration,
    ) -> io::Result<()> {
        SockRef::from(socket).set_tcp_user_timeout(Some(most))
    }
}

/// What is left out does without: no mark, buffers within the system's limit, the MTU of Ethernet, an interface's address, the system's own time
/// until a silent connection ends.
#[cfg(not(target_os = "linux"))]
mod others {
    use super::{AsSocket, Duration, io};

    pub(in crate::direct) fn mark(_: &impl AsSocket, _: u32) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in crate::direct) fn force_buffers(_: &impl AsSocket, _: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in crate::direct) fn hold_receive_offload() {}

    pub(in crate::direct) fn omit_destinations(_: &impl AsSocket, _: bool) -> io::Result<()> {
        Ok(())
    }

    pub(in crate::direct) fn path_mtu(_: &impl AsSocket, _: bool) -> Option<u32> {
        None
    }

    pub(in crate::direct) fn allow_any_ipv6(_: &impl AsSocket) -> io::Result<()> {
        Ok(())
    }

    pub(in crate::direct) fn choose_port_late(_: &impl AsSocket) -> io::Result<()> {
        Ok(())
    }

    pub(in crate::direct) fn limit_silence(_: &impl AsSocket, _: Duration) -> io::Result<()> {
        Ok(())
    }
}
