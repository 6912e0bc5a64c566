//! The front ends with the program that people use: curl, over the overlay that is no relay at all.
use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::{Command, Output},
    sync::Arc,
    thread,
};

use hoplite_mediator::{Config, Counters, Front, Listen};
use hoplite_overlay::direct::{Direct, Fixed};
use hoplite_wire::HostName;
use tokio::sync::oneshot;

/// Large enough for many reads and writes, and no multiple of any buffer.
const SIZE: usize = 5_000_003;

fn data() -> Vec<u8> {
    let mut state = 1u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(SIZE).collect()
}

/// FNV-1a: a difference anywhere shows.
fn checksum(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// An HTTP server: GET answers with the data, PUT with the checksum of what was sent.
fn serve() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for tcp in listener.incoming().flatten() {
            thread::spawn(move || drop(answer(tcp)));
        }
    });
    address
}

fn answer(mut tcp: TcpStream) -> io::Result<()> {
    let mut head = Vec::new();
    loop {
        head.clear();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            tcp.read_exact(&mut byte)?;
            head.extend(byte);
        }
        let text = String::from_utf8_lossy(&head).to_lowercase();
        assert!(!text.contains("proxy") && !text.contains("via"), "{text}");
        if text.contains("expect: 100-continue") {
            tcp.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let length = text
            .split("content-length: ")
            .nth(1)
            .and_then(|rest| rest.split('\r').next());
        let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a number"))];
        tcp.read_exact(&mut body)?;
        let reply = if text.starts_with("put") {
            checksum(&body).to_string().into_bytes()
        } else {
            data()
        };
        write!(
            tcp,
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
            reply.len()
        )?;
        tcp.write_all(&reply)?;
    }
}

/// A front in a thread of its own, over `Direct`; only `target.example` resolves, and only there.
struct Running {
    socks: SocketAddr,
    http: SocketAddr,
    counters: Arc<Counters>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Running {
    fn start() -> Self {
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.expect("a runtime").block_on(async {
                let mut config = Config::default();
                let listen = Listen::At(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
                (config.socks.listen, config.http.listen) = (listen, listen);
                let front = Front::bind(config).expect("binds");
                let addresses = (front.socks_addr(), front.http_addr(), front.counters());
                tell.send(addresses).expect("somebody listens");
                let name = HostName::new("target.example").expect("valid");
                let names = Fixed::default().with(name, vec![Ipv4Addr::LOCALHOST.into()]);
                let overlay = Arc::new(Direct::new().resolver(Arc::new(names)));
                front.serve(overlay, async { drop(stopped.await) }).await;
            });
        });
        let (socks, http, counters) = told.recv().expect("the front is bound");
        Self {
            socks: socks.expect("bound"),
            http: http.expect("bound"),
            counters,
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("ends in order");
        }
    }
}

/// Runs curl; `None` and a printed note where there is none.
#[expect(clippy::print_stdout, reason = "a test that was skipped says so")]
fn curl(arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new("curl");
    command.args([
        "--silent",
        "--show-error",
        "--noproxy",
        "",
        "--max-time",
        "60",
    ]);
    let output = command.args(arguments).output();
    if output.is_err() {
        println!("skipped: there is no curl on this machine");
    }
    output.ok()
}

/// Downloads and uploads through `proxy`.
fn transfers(front: &Running, proxy: &[&str]) {
    let url = format!("http://target.example:{}/", serve().port());
    let Some(got) = curl(&[proxy, &[&url]].concat()) else {
        return;
    };
    assert!(
        got.status.success(),
        "{}",
        String::from_utf8_lossy(&got.stderr)
    );
    assert_eq!(
        (got.stdout.len(), checksum(&got.stdout)),
        (SIZE, checksum(&data()))
    );
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(&data()).expect("writes");
    let path = file.path().to_str().expect("text");
    let Some(put) = curl(&[proxy, &["--upload-file", path, &url]].concat()) else {
        return;
    };
    assert!(
        put.status.success(),
        "{}",
        String::from_utf8_lossy(&put.stderr)
    );
    assert_eq!(
        String::from_utf8_lossy(&put.stdout),
        checksum(&data()).to_string()
    );
    let counted = front.counters.snapshot();
    assert!(counted.bytes_up > SIZE as u64 && counted.bytes_down > SIZE as u64);
}

#[test]
fn curl_transfers_through_socks_with_names_resolved_at_the_far_end() {
    let front = Running::start();
    transfers(&front, &["--proxy", &format!("socks5h://{}", front.socks)]);
}

#[test]
fn curl_transfers_through_socks_with_a_user_name() {
    let front = Running::start();
    transfers(
        &front,
        &["--proxy", &format!("socks5h://me:any@{}", front.socks)],
    );
}

#[test]
fn curl_transfers_through_http_connect() {
    let front = Running::start();
    let proxy = format!("http://me:any@{}", front.http);
    transfers(&front, &["--proxytunnel", "--proxy", &proxy]);
}

#[test]
fn curl_transfers_through_absolute_form_requests() {
    let front = Running::start();
    transfers(&front, &["--proxy", &format!("http://{}", front.http)]);
}

#[test]
fn curl_reuses_one_connection_for_several_requests() {
    let front = Running::start();
    let url = format!("http://target.example:{}/", serve().port());
    let proxy = format!("http://{}", front.http);
    let Some(got) = curl(&["--proxy", &proxy, &url, &url, &url]) else {
        return;
    };
    assert_eq!(got.stdout.len(), 3 * SIZE);
    let counted = front.counters.snapshot();
    assert_eq!((counted.accepted_http, counted.streams), (1, 1));
}

#[test]
fn curl_is_told_what_failed() {
    let front = Running::start();
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
    let port = closed.local_addr().expect("bound").port();
    drop(closed);
    let socks = format!("socks5h://{}", front.socks);
    let http = format!("http://{}", front.http);
    let refused = format!("http://target.example:{port}/");
    let status = ["--output", "/dev/null", "--write-out", "%{http_code}"];
    for (proxy, url, code, said) in [
        (&socks, refused.as_str(), 97, "(5)"),
        (&socks, "http://nowhere.example/", 97, "(4)"),
        (&http, &refused, 0, "502"),
    ] {
        let Some(got) = curl(&[&["--proxy", proxy, url], &status[..]].concat()) else {
            return;
        };
        let all = [got.stdout, got.stderr].concat();
        let all = String::from_utf8_lossy(&all);
        assert!(all.contains(said), "{all}");
        assert_eq!(got.status.code(), Some(code), "{all}");
    }
}
