//! When a TCP connection is given up whose other end is silent: who loses power sends nothing that would end it, and the system repeats what was
//! sent for a quarter of an hour. [`super::Direct`] sets it on connections that carry tunnels, a relay on channels that come in. RFC 5482.

use std::{io, os::fd::AsFd, time::Duration};

use socket2::{SockRef, TcpKeepalive};

/// How long the other end may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// What was sent may be for so long without an acknowledgement, or the other end without room for more (TCP_USER_TIMEOUT).
    pub most: Duration,
    /// When nothing was sent for `after`, the other end is asked, and then again each `again`; unanswered ones count up to `most` from its
    /// last word. `None`: it is not asked.
    pub asked: Option<KeepAlive>,
}

/// Keep-alive (RFC 9293 §3.8.4), in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// The first time.
    pub after: Duration,
    /// And then.
    pub again: Duration,
}

impl Silence {
    /// Towards a relay, from a client: somewhat longer than QUIC's 4 s, since TCP waits twice as long before each repetition. It does not ask:
    /// a client that wants something sends something, and the relay asks.
    pub const OF_ENTRY: Self = Self {
        most: Duration::from_secs(10),
        asked: None,
    };

    /// Between relays.
    pub const OF_RELAY: Self = Self {
        most: Duration::from_secs(10),
        asked: Some(KeepAlive {
            after: Duration::from_secs(4),
            again: Duration::from_secs(2),
        }),
    };

    /// Of a client, at a relay, as over QUIC: its network may be about to change.
    pub const OF_CLIENT: Self = Self {
        most: Duration::from_secs(45),
        asked: Some(KeepAlive {
            after: Duration::from_secs(25),
            again: Duration::from_secs(5),
        }),
    };

    /// Has the system give the connection up so.
    ///
    /// # Errors
    /// The operating system's.
    pub fn set(&self, socket: &impl AsFd) -> io::Result<()> {
        let socket = SockRef::from(socket);
        socket.set_tcp_user_timeout(Some(self.most))?;
        let Some(KeepAlive { after, again }) = self.asked else {
            return Ok(());
        };
        let asked = TcpKeepalive::new().with_time(after).with_interval(again);
        socket.set_tcp_keepalive(&asked)
    }
}

#[cfg(test)]
mod tests {
    use hoplite_wire::Target;
    use tokio::net::TcpListener;

    use super::*;
    use crate::direct::Direct;

    const ALL: [Silence; 3] = [Silence::OF_ENTRY, Silence::OF_RELAY, Silence::OF_CLIENT];

    fn found(socket: &impl AsFd) -> Silence {
        let socket = SockRef::from(socket);
        let most = socket.tcp_user_timeout().expect("read").unwrap_or_default();
        let asked = socket.keepalive().expect("read").then(|| KeepAlive {
            after: socket.tcp_keepalive_time().expect("read"),
            again: socket.tcp_keepalive_interval().expect("read"),
        });
        Silence { most, asked }
    }

    #[tokio::test]
    async fn a_connection_that_carries_a_tunnel_is_given_up_when_its_other_end_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let target = Target::from(listener.local_addr().expect("bound"));
        let open = async |direct: Direct| {
            let flow = direct.stream(&target).await.expect("connects");
            found(flow.socket())
        };
        assert_eq!(open(Direct::for_tunnels()).await, Silence::OF_ENTRY);
        for silence in ALL {
            assert_eq!(open(Direct::new().silence(silence)).await, silence);
        }
        let ordinary = open(Direct::new()).await;
        assert_eq!(ordinary.most, Duration::ZERO, "a target may take its time");
        assert_eq!(ordinary.asked, None);
    }

    #[tokio::test]
    async fn an_accepted_connection_is_given_up_as_well() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let near = tokio::net::TcpStream::connect(address);
        let (near, accepted) = tokio::join!(near, listener.accept());
        let accepted = accepted.expect("accepted").0;
        for silence in ALL {
            silence.set(&accepted).expect("set");
            assert_eq!(found(&accepted).most, silence.most);
        }
        assert_eq!(found(&accepted), Silence::OF_CLIENT);
        drop(near);
    }

    /// The system ends a connection as soon as the time is over and one question has no answer.
    #[test]
    fn two_lost_questions_do_not_end_a_connection_at_rest() {
        for Silence { most, asked } in ALL {
            let Some(KeepAlive { after, again }) = asked else {
                continue;
            };
            assert!(after + 2 * again < most, "{most:?}");
        }
    }
}
