//! The socket at which whoever runs a client follows its circuits and streams (`onion.control`): Tor's control protocol, of which
//! [`control::Session`] is what we speak. It tells targets and programs' ports: only the user of this process, and root, may open it.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use hoplite_onion::{
    Events,
    client::{Event, control},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream, unix::OwnedWriteHalf},
    sync::{Semaphore, broadcast},
    task::JoinHandle,
    time::{sleep, timeout},
};

/// Followers at once; others wait.
const MAX_FOLLOWERS: usize = 8;

/// How long a follower may not read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long accepting rests when the system gives no more connections.
const ACCEPT_REST: Duration = Duration::from_secs(1);

/// Gone when it is dropped.
#[derive(Debug)]
pub(super) struct ControlSocket {
    path: PathBuf,
    serving: JoinHandle<()>,
}

impl ControlSocket {
    /// Listens. A socket that a dead process left is replaced; one that somebody listens at is not.
    pub(super) fn listen(path: &Path, events: Events) -> io::Result<Self> {
        remove_left(path)?;
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        Ok(Self {
            path: path.to_owned(),
            serving: tokio::spawn(serve(listener, events)),
        })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.serving.abort();
        // Whoever comes next replaces it anyway.
        fs::remove_file(&self.path).unwrap_or_default();
    }
}

fn remove_left(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(there) if !there.file_type().is_socket() => {
            let why = "there is a file that is no socket: name another path";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        Ok(_) => {}
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        let why = "another process listens there: end it, or name another path";
        return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
    }
    fs::remove_file(path)
}

async fn serve(listener: UnixListener, events: Events) {
    let open = Arc::new(Semaphore::new(MAX_FOLLOWERS));
    loop {
        let Ok(permit) = Arc::clone(&open).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_REST).await;
            continue;
        };
        // Between bind and chmod others could have come.
        let is_ours = stream.peer_cred().is_ok_and(|peer| may_follow(peer.uid()));
        if let (true, Some(followed)) = (is_ours, events.follow()) {
            tokio::spawn(async move {
                if let Err(error) = talk(stream, followed).await {
                    tracing::debug!(%error, "a follower of circuits is let go");
                }
                drop(permit);
            });
        }
    }
}

fn may_follow(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

async fn talk(stream: UnixStream, mut followed: broadcast::Receiver<Event>) -> io::Result<()> {
    let (reading, mut writing) = stream.into_split();
    let longest = u64::try_from(control::LONGEST).unwrap_or(u64::MAX);
    let mut reading = BufReader::new(reading.take(longest));
    let (mut session, mut line) = (control::Session::default(), Vec::new());
    loop {
        tokio::select! {
            read = reading.read_until(b'\n', &mut line) => {
                read?;
                if line.last() != Some(&b'\n') {
                    return Ok(());
                }
                let answer = session.command(&String::from_utf8_lossy(&line));
                line.clear();
                reading.get_mut().set_limit(longest);
                write(&mut writing, &answer.text).await?;
                if answer.last {
                    return Ok(());
                }
            }
            event = followed.recv() => {
                // Who has lost some would take what follows for all.
                let event = event.map_err(io::Error::other)?;
                if let Some(text) = session.event(&event) {
                    write(&mut writing, &text).await?;
                }
            }
        }
    }
}

async fn write(writing: &mut OwnedWriteHalf, text: &str) -> io::Result<()> {
    timeout(WRITE_TIMEOUT, writing.write_all(text.as_bytes())).await?
}
