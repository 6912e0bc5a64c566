//! The table and its tasks as a program sees them, with a network in memory behind; the clock is tokio's, and paused.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use hoplite_overlay::{
    Overlay, Stream,
    memory::{Conditions, Listener, Network},
};
use hoplite_testing::Double;
use hoplite_wire::{
    Host, HostName, Target,
    ip::{
        self, icmp,
        tcp::{Flags, Header, Options},
    },
};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Instant;

use super::{
    SynBacklog, TcpTable,
    connection::Connection,
    flow::{FlowTask, OpenRequest, TcpFlow},
};
use crate::tun::{
    Config, DeviceContext, FlowKey,
    config::Opening as When,
    device::IncomingPacket,
    outgoing::PacketSink,
    router::Router,
    testing::{Bench, PROGRAM, TARGET, parsed, tcp_packet, udp_packet},
};
use crate::users::User;

const PORT: u16 = 80;
/// What does not come by then, in the tests' own time, does not come.
const NEVER: Duration = Duration::from_secs(100_000);

/// A program with one connection; it keeps count and nothing else.
struct Program {
    host: IpAddr,
    port: u16,
    target: u16,
    seq: u32,
    ack: u32,
}

/// What it got.
struct Got {
    header: Header,
    payload: Vec<u8>,
}

impl Program {
    fn new(port: u16) -> Self {
        Self::to(port, PORT)
    }

    fn to(port: u16, target: u16) -> Self {
        Self {
            host: TARGET,
            port,
            target,
            seq: 7000,
            ack: 0,
        }
    }

    fn say(&mut self, bench: &mut Bench, flags: Flags, payload: &[u8]) {
        bench.send(self.packet(flags, payload));
    }

    fn packet(&mut self, flags: Flags, payload: &[u8]) -> Vec<u8> {
        let options = Options {
            mss: flags.contains(Flags::SYN).then_some(1460),
            window_scale: flags.contains(Flags::SYN).then_some(7),
            ..Options::default()
        };
        let header = Header {
            source: self.port,
            destination: self.target,
            sequence: self.seq,
            acknowledgment: self.ack,
            flags,
            window: 4096,
            options,
            ..Header::default()
        };
        let counted = payload.len() + usize::from(flags.intersects(Flags::SYN | Flags::FIN));
        self.seq += u32::try_from(counted).expect("small");
        tcp_packet(PROGRAM, self.host, &header, payload)
    }

    /// The next segment; the program expects what follows it.
    async fn hear(&mut self, bench: &Bench) -> Got {
        let hearing = tokio::time::timeout(NEVER, bench.sink.next());
        let bytes = hearing.await.expect("a packet");
        let packet = parsed(&bytes);
        assert_eq!((packet.source, packet.destination), (self.host, PROGRAM));
        let segment = ip::tcp::parse(packet.payload).expect("a segment");
        assert_eq!((segment.source, segment.destination), (PORT, self.port));
        let (header, payload) = (segment.header(), segment.payload.to_vec());
        let flags = header.flags;
        let counted = payload.len() + usize::from(flags.intersects(Flags::SYN | Flags::FIN));
        let next = header
            .sequence
            .wrapping_add(u32::try_from(counted).expect("small"));
        if counted > 0 {
            self.ack = next;
        }
        Got { header, payload }
    }

    async fn connect(&mut self, bench: &mut Bench) {
        self.say(bench, Flags::SYN, b"");
        let answer = self.hear(bench).await.header;
        assert_eq!(answer.flags, Flags::SYN | Flags::ACK);
        self.say(bench, Flags::ACK, b"");
    }
}

fn target() -> SocketAddr {
    SocketAddr::new(TARGET, PORT)
}

fn bench(open: When) -> (Bench, Listener) {
    bench_of(open, 16_384)
}

fn bench_of(open: When, flows: usize) -> (Bench, Listener) {
    let change = |config: &mut Config| (config.flows.open, config.flows.tcp) = (open, flows);
    let bench = Bench::with(change);
    let listener = bench.network.listen_at(target());
    (bench, listener)
}

/// A connection and the target's end of its stream.
async fn connected(bench: &mut Bench, listener: &mut Listener) -> (Program, Stream) {
    let mut program = Program::new(5000);
    program.connect(bench).await;
    (program, listener.accept().await)
}

/// Puts another overlay behind the router.
fn behind(bench: &mut Bench, overlay: Arc<dyn Overlay>) {
    let config = bench.context.config.clone();
    let port = Arc::clone(&bench.sink) as Arc<dyn PacketSink>;
    let context = DeviceContext::new(config, overlay, port, Arc::clone(&bench.context.counters));
    bench.context = Arc::new(context);
    bench.router = Router::new(&bench.context);
}

/// A target that takes nothing, and answers and finishes when somebody tries.
#[derive(Debug, Default)]
struct Unheard {
    refused: bool,
    told: usize,
    reader: Option<Waker>,
}

impl AsyncRead for Unheard {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        unreachable!("the overlay's own buffers are taken")
    }
}

impl AsyncBufRead for Unheard {
    fn poll_fill_buf(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        if !self.refused {
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(&b"answer"[self.told..]))
    }

    fn consume(mut self: Pin<&mut Self>, bytes: usize) {
        self.told += bytes;
    }
}

impl AsyncWrite for Unheard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.refused = true;
        self.reader.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Lets the tasks do all that they can.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn an_optimistic_connection_takes_bytes_before_there_is_a_stream() {
    let mut bench = Bench::with(|config| config.flows.open = When::Optimistic);
    bench.network.silence(target());
    let _listener = bench.network.listen_at(target());
    let mut program = Program::new(5000);
    program.connect(&mut bench).await;
    program.say(&mut bench, Flags::ACK | Flags::PSH, b"hello");
    let ack = program.hear(&bench).await.header;
    assert_eq!(ack.acknowledgment, program.seq);
}

const LATENCY: Duration = Duration::from_millis(50);

fn distant(bench: &Bench) {
    bench.network.set_conditions(Conditions {
        latency: LATENCY,
        ..Conditions::default()
    });
}

/// When a target has heard the first bytes of a program that speaks at once, and when the program has heard the answer.
async fn question_and_answer(open: When) -> [Duration; 2] {
    let (mut bench, mut listener) = bench(open);
    distant(&bench);
    let start = Instant::now();
    let mut program = Program::new(5000);
    program.connect(&mut bench).await;
    program.say(&mut bench, Flags::ACK | Flags::PSH, b"question");
    let mut far = listener.accept().await;
    far.read_exact(&mut [0; 8]).await.expect("asked");
    let asked = start.elapsed();
    far.write_all(b"answer").await.expect("open");
    while program.hear(&bench).await.payload.is_empty() {}
    [asked, start.elapsed()]
}

#[tokio::test(start_paused = true)]
async fn what_an_optimistic_program_says_travels_with_the_request_and_saves_a_round_trip() {
    let optimistic = question_and_answer(When::Optimistic).await;
    assert_eq!(optimistic, [LATENCY, LATENCY * 2]);
    let pessimistic = question_and_answer(When::Pessimistic).await;
    assert_eq!(pessimistic, [LATENCY * 3, LATENCY * 4]);
}

#[tokio::test(start_paused = true)]
async fn an_optimistic_program_may_finish_before_the_target_has_answered() {
    let (mut bench, mut listener) = bench(When::Optimistic);
    distant(&bench);
    let mut program = Program::new(5000);
    program.connect(&mut bench).await;
    program.say(&mut bench, Flags::ACK | Flags::FIN, b"question");
    let mut far = listener.accept().await;
    let mut heard = Vec::new();
    far.read_to_end(&mut heard).await.expect("ends");
    assert_eq!(heard, b"question");
    far.write_all(b"answer").await.expect("open");
    far.shutdown().await.expect("open");
    let mut got = Vec::new();
    loop {
        let Got { header, payload } = program.hear(&bench).await;
        got.extend(payload);
        if header.flags.contains(Flags::FIN) {
            break;
        }
    }
    assert_eq!(got, b"answer");
}

/// The program was answered at once, has spoken, and is reset.
async fn is_reset(program: &mut Program, bench: &mut Bench) {
    program.connect(bench).await;
    program.say(bench, Flags::ACK | Flags::PSH, b"question");
    while !program.hear(bench).await.header.flags.contains(Flags::RST) {}
    settle().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_behind_the_first_bytes_resets_the_program_and_costs_the_target_its_trust() {
    let (mut bench, mut listener) = bench(When::Auto);
    distant(&bench);
    let _first = connected(&mut bench, &mut listener).await;
    drop(listener);
    is_reset(&mut Program::new(5001), &mut bench).await;
    assert_eq!(bench.context.counters.failed_target.value(), 1);
    let mut program = Program::new(5002);
    program.say(&mut bench, Flags::SYN, b"");
    let refusal = program.hear(&bench).await.header;
    assert_eq!(refusal.flags, Flags::RST | Flags::ACK, "it was asked first");
}

#[tokio::test(start_paused = true)]
async fn a_name_that_nobody_has_is_found_out_behind_the_first_bytes() {
    let mut bench = Bench::with(|config| config.flows.open = When::Optimistic);
    let name = HostName::new("nobody.example").expect("a name");
    let pair = bench
        .context
        .names
        .pair(&name, User::at(PROGRAM), Instant::now());
    let address = pair.expect("an address").v4;
    let mut program = Program::new(5000);
    program.host = address.into();
    is_reset(&mut program, &mut bench).await;
    assert!(bench.context.names.is_missing(&name, Instant::now()));
}

#[tokio::test(start_paused = true)]
async fn a_target_that_does_not_answer_an_optimistic_program_is_given_up_in_time() {
    let (mut bench, _listener) = bench(When::Optimistic);
    bench.network.silence(target());
    let start = Instant::now();
    is_reset(&mut Program::new(5000), &mut bench).await;
    let limit = bench.context.config.flows.opening;
    assert!(start.elapsed() >= limit && start.elapsed() < limit * 2);
    assert_eq!(bench.context.counters.failed_timed_out.value(), 1);
}

#[tokio::test(start_paused = true)]
async fn trust_is_renewed_by_an_answer_and_not_by_asking() {
    let (mut bench, mut listener) = bench(When::Auto);
    let first = connected(&mut bench, &mut listener).await;
    tokio::time::sleep(Duration::from_secs(580)).await;
    bench.network.silence(target());
    let mut second = Program::new(5001);
    second.connect(&mut bench).await;
    tokio::time::sleep(Duration::from_secs(21)).await;
    let mut third = Program::new(5002);
    third.say(&mut bench, Flags::SYN, b"");
    settle().await;
    assert!(bench.sink.try_next().is_none(), "nobody has answered");
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn bytes_and_ends_pass_both_ways() {
    let (mut bench, mut listener) = bench(When::Optimistic);
    let (mut program, mut far) = connected(&mut bench, &mut listener).await;
    program.say(&mut bench, Flags::ACK | Flags::FIN, b"question");
    assert_eq!(
        program.hear(&bench).await.header.acknowledgment,
        program.seq
    );
    let mut heard = Vec::new();
    far.read_to_end(&mut heard).await.expect("ends");
    assert_eq!(heard, b"question");
    far.write_all(b"answer").await.expect("open");
    far.shutdown().await.expect("open");
    let mut got = Vec::new();
    loop {
        let Got { header, payload } = program.hear(&bench).await;
        got.extend(payload);
        if header.flags.contains(Flags::FIN) {
            break;
        }
    }
    assert_eq!(got, b"answer");
    program.say(&mut bench, Flags::ACK, b"");
    settle().await;
    assert_eq!(bench.context.counters.tcp_closed.value(), 1);
    let snapshot = bench.context.counters.snapshot();
    assert_eq!((snapshot.tcp_up, snapshot.tcp_down), (8, 6));
}

#[tokio::test(start_paused = true)]
async fn a_pessimistic_connection_is_answered_when_the_target_is_there_and_refused_when_it_is_not()
{
    let (mut bench, listener) = bench(When::Pessimistic);
    drop(listener);
    let mut program = Program::new(5000);
    program.say(&mut bench, Flags::SYN, b"");
    let refusal = program.hear(&bench).await.header;
    assert_eq!(refusal.flags, Flags::RST | Flags::ACK);
    assert_eq!(refusal.acknowledgment, program.seq);
    let _listener = bench.network.listen_at(target());
    Program::new(5001).connect(&mut bench).await;
}

#[tokio::test(start_paused = true)]
async fn other_failures_are_told_by_icmp_that_quotes_the_syn() {
    // Nobody has the target's address.
    let mut bench = Bench::new();
    Program::new(5000).say(&mut bench, Flags::SYN, b"");
    let bytes = bench.sink.next().await;
    let packet = parsed(&bytes);
    assert_eq!(packet.protocol, ip::ICMP);
    assert_eq!(&packet.payload[..2], [3, 1], "host unreachable");
    let quoted = parsed(&packet.payload[8..]);
    assert_eq!((quoted.source, quoted.destination), (PROGRAM, TARGET));
    assert_eq!(bench.context.counters.failed_target.value(), 1);
    assert!(icmp::echo(&packet).is_none());
}

#[tokio::test(start_paused = true)]
async fn auto_answers_at_once_what_lately_worked() {
    let (mut bench, mut listener) = bench(When::Auto);
    let first = connected(&mut bench, &mut listener).await;
    bench.network.silence(target());
    let mut program = Program::new(5001);
    program.connect(&mut bench).await;
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_breaks_resets_the_program_and_a_program_that_resets_breaks_the_stream() {
    let (mut bench, mut listener) = bench(When::Optimistic);
    let (mut program, far) = connected(&mut bench, &mut listener).await;
    drop(far);
    assert!(program.hear(&bench).await.header.flags.contains(Flags::RST));
    let mut program = Program::new(5001);
    program.connect(&mut bench).await;
    let mut far = listener.accept().await;
    program.say(&mut bench, Flags::RST, b"");
    assert!(far.read_u8().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn nobody_takes_more_from_the_target_than_the_program_has_room_for() {
    let (mut bench, mut listener) = bench(When::Optimistic);
    let (mut program, mut far) = connected(&mut bench, &mut listener).await;
    let all = vec![9; 3 << 20];
    let sending = tokio::spawn(async move {
        let mut sent = 0;
        while let Ok(len) = far.write(&all[sent..]).await {
            sent += len;
            if sent == all.len() {
                break;
            }
        }
        far
    });
    let mut got = 0;
    while got < 4096 << 7 {
        got += program.hear(&bench).await.payload.len();
    }
    assert_eq!(got, 4096 << 7);
    settle().await;
    assert!(bench.sink.try_next().is_none(), "beyond the window");
    assert!(!sending.is_finished());
    program.say(&mut bench, Flags::ACK, b"");
    assert!(!program.hear(&bench).await.payload.is_empty());
    sending.abort();
}

#[tokio::test(start_paused = true)]
async fn nobody_takes_more_from_the_program_than_the_window() {
    let (mut bench, mut listener) = bench(When::Optimistic);
    let (mut program, far) = connected(&mut bench, &mut listener).await;
    let piece = vec![1; 60_000];
    let mut last = u16::MAX;
    for _ in 0..40 {
        program.say(&mut bench, Flags::ACK, &piece);
        settle().await;
        last = program.hear(&bench).await.header.window;
        while bench.sink.try_next().is_some() {}
    }
    assert_eq!(last, 0);
    assert_eq!(
        bench.context.counters.tcp_up.value() >> 18,
        1,
        "what the network holds"
    );
    drop(far);
}

#[tokio::test(start_paused = true)]
async fn syns_are_dropped_and_counted_while_all_places_are_being_opened() {
    let (mut bench, mut listener) = bench_of(When::Pessimistic, 1);
    let silent = SocketAddr::new(TARGET, PORT + 1);
    bench.network.silence(silent);
    let mut first = Program::to(5000, silent.port());
    first.say(&mut bench, Flags::SYN, b"");
    let mut second = Program::new(5001);
    second.say(&mut bench, Flags::SYN, b"");
    settle().await;
    assert_eq!(bench.context.counters.tcp_dropped.value(), 1);
    first.ack = 1;
    first.say(&mut bench, Flags::RST, b"");
    settle().await;
    connected(&mut bench, &mut listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_holds_all_places_loses_one_to_a_newcomer_and_the_only_flow_to_another_target_stays()
 {
    let (mut bench, mut listener) = bench_of(When::Optimistic, 100);
    let [hoarded, other] = [77, 78].map(|host| IpAddr::from([203, 0, 113, host]));
    let (_rested, mut far) = connected(&mut bench, &mut listener).await;
    tokio::time::sleep(Duration::from_secs(1800)).await;
    let mut hoard = bench.network.listen_at(SocketAddr::new(hoarded, PORT));
    let mut elsewhere = bench.network.listen_at(SocketAddr::new(other, PORT));
    let mut far_ends = Vec::new();
    for port in 6000..6099 {
        let mut program = Program::new(port);
        program.host = hoarded;
        program.connect(&mut bench).await;
        far_ends.push(hoard.accept().await);
    }
    for port in 7000..7005 {
        let mut newcomer = Program::new(port);
        newcomer.host = other;
        newcomer.say(&mut bench, Flags::SYN, b"");
        // The reset of the one that made room comes first.
        let answer = loop {
            let bytes = bench.sink.next().await;
            let packet = parsed(&bytes);
            let segment = ip::tcp::parse(packet.payload).expect("a segment");
            if segment.destination == port {
                break segment.header();
            }
            assert_eq!(
                (packet.source, segment.flags.contains(Flags::RST)),
                (hoarded, true)
            );
        };
        assert_eq!(answer.flags, Flags::SYN | Flags::ACK);
        newcomer.ack = answer.sequence.wrapping_add(1);
        newcomer.say(&mut bench, Flags::ACK, b"");
        far_ends.push(elsewhere.accept().await);
    }
    far.write_all(b"still there").await.expect("open");
    while bench.sink.try_next().is_some() {}
    settle().await;
    let bytes = bench.sink.try_next().expect("bytes");
    let segment = ip::tcp::parse(parsed(&bytes).payload)
        .expect("a segment")
        .payload
        .to_vec();
    assert_eq!(segment, b"still there");
    let counters = bench.context.counters.snapshot();
    assert_eq!((counters.tcp_rested, counters.tcp_dropped), (5, 0));
}

/// Of the programs those that send from ports below 20000 are one user's.
fn quiet_below_20000(port: u16) -> User {
    User::local(if port < 20_000 { 1000 } else { 1001 }, 1)
}

/// A SYN's answer, and the ports whose connections are reset meanwhile.
async fn answered(bench: &mut Bench, program: &mut Program) -> (Header, Vec<u16>) {
    program.say(bench, Flags::SYN, b"");
    settle().await;
    let (mut answer, mut reset) = (None, Vec::new());
    while let Some(bytes) = bench.sink.try_next() {
        let segment = ip::tcp::parse(parsed(&bytes).payload).expect("a segment");
        if segment.destination == program.port {
            answer = Some(segment.header());
        } else if segment.flags.contains(Flags::RST) {
            reset.push(segment.destination);
        }
    }
    (answer.expect("an answer"), reset)
}

#[tokio::test(start_paused = true)]
async fn a_program_that_keeps_all_places_busy_makes_room_for_each_connection_of_another_user() {
    let change = |config: &mut Config| {
        (config.flows.open, config.flows.tcp) = (When::Optimistic, 64);
    };
    let mut bench = Bench::shared_by(quiet_below_20000, change);
    let mut listener = bench.network.listen_at(target());
    let (mut far_ends, mut hogs) = (Vec::new(), Vec::new());
    for port in 20_000..20_064 {
        let mut program = Program::new(port);
        program.connect(&mut bench).await;
        far_ends.push(listener.accept().await);
        hogs.push(program);
    }
    for port in 5000..5020 {
        // Each place is in use at this moment; the quiet user's rest.
        tokio::time::sleep(Duration::from_secs(30)).await;
        for hog in &mut hogs {
            hog.say(&mut bench, Flags::ACK, b"busy");
        }
        settle().await;
        while bench.sink.try_next().is_some() {}
        let mut quiet = Program::new(port);
        let (answer, reset) = answered(&mut bench, &mut quiet).await;
        assert_eq!(answer.flags, Flags::SYN | Flags::ACK);
        assert_eq!((reset.len(), reset[0] >= 20_000), (1, true));
        hogs.retain(|hog| hog.port != reset[0]);
        quiet.ack = answer.sequence.wrapping_add(1);
        quiet.say(&mut bench, Flags::ACK, b"");
        far_ends.push(listener.accept().await);
        // The place is taken by the hog's next one at once, at its own cost.
        let mut again = Program::new(reset[0] + 1000);
        let (answer, reset) = answered(&mut bench, &mut again).await;
        again.ack = answer.sequence.wrapping_add(1);
        again.say(&mut bench, Flags::ACK, b"");
        far_ends.push(listener.accept().await);
        assert_eq!((reset.len(), reset[0] >= 20_000), (1, true));
        hogs.retain(|hog| hog.port != reset[0]);
        hogs.push(again);
    }
    let counters = bench.context.counters.snapshot();
    assert_eq!((counters.tcp_dropped, counters.tcp_rested), (0, 40));
}

#[tokio::test(start_paused = true)]
async fn nobody_makes_room_while_a_place_is_free() {
    let change = |config: &mut Config| {
        (config.flows.open, config.flows.tcp) = (When::Optimistic, 64);
    };
    let mut bench = Bench::shared_by(quiet_below_20000, change);
    let mut listener = bench.network.listen_at(target());
    let mut far_ends = Vec::new();
    for port in (20_000..20_063).chain([5000]) {
        Program::new(port).connect(&mut bench).await;
        far_ends.push(listener.accept().await);
    }
    let counters = bench.context.counters.snapshot();
    assert_eq!((counters.tcp_dropped, counters.tcp_rested), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_one_users_syns_does_not_end_what_another_is_opening() {
    let change = |config: &mut Config| {
        (config.flows.open, config.flows.tcp) = (When::Pessimistic, 40);
    };
    let mut bench = Bench::shared_by(quiet_below_20000, change);
    let _listener = bench.network.listen_at(target());
    let silent = SocketAddr::new(TARGET, PORT + 1);
    bench.network.silence(silent);
    Program::to(5000, silent.port()).say(&mut bench, Flags::SYN, b"");
    for port in 20_000..20_500 {
        Program::to(port, silent.port()).say(&mut bench, Flags::SYN, b"");
        settle().await;
    }
    assert_eq!(bench.context.counters.tcp_evicted.value(), 491);
    Program::to(5001, silent.port()).say(&mut bench, Flags::SYN, b"");
    assert_eq!(bench.context.counters.tcp_evicted.value(), 492);
    settle().await;
    while bench.sink.try_next().is_some() {}
    tokio::time::sleep(bench.context.config.flows.opening).await;
    // Who made room hears nothing; whose opening took too long is told.
    let mut told = Vec::new();
    while let Some(bytes) = bench.sink.try_next() {
        let quoted = &parsed(&bytes).payload[8..];
        told.extend(ip::tcp::parse(&quoted[20..]).map(|segment| segment.source));
    }
    assert!(told.contains(&5000), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_being_opened_makes_room_for_another_user_when_there_is_no_other() {
    let change = |config: &mut Config| {
        (config.flows.open, config.flows.tcp) = (When::Pessimistic, 1);
    };
    let mut bench = Bench::shared_by(quiet_below_20000, change);
    let mut listener = bench.network.listen_at(target());
    let silent = SocketAddr::new(TARGET, PORT + 1);
    bench.network.silence(silent);
    Program::to(20_000, silent.port()).say(&mut bench, Flags::SYN, b"");
    settle().await;
    connected(&mut bench, &mut listener).await;
    assert_eq!(bench.context.counters.tcp_dropped.value(), 0);
}

/// Sends bytes as fast as windows allow; a packet is one of the largest that a kernel makes.
struct Sender {
    program: Program,
    /// How far the window goes.
    edge: u32,
    template: Vec<u8>,
}

const LARGE: usize = 60_000;

impl Sender {
    fn new(port: u16, target: u16, template: &[u8]) -> Self {
        let program = Program::to(port, target);
        let template = template.to_vec();
        Self {
            program,
            edge: 0,
            template,
        }
    }

    fn template() -> Vec<u8> {
        Program::new(1).packet(Flags::ACK, &[5; LARGE])
    }

    /// What comes for others is theirs to be lost.
    fn listen(&mut self, bench: &Bench) -> bool {
        let mut reset = false;
        while let Some(bytes) = bench.sink.try_next() {
            let segment = ip::tcp::parse(parsed(&bytes).payload)
                .expect("a segment")
                .header();
            if segment.destination != self.program.port {
                continue;
            }
            reset |= segment.flags.contains(Flags::RST);
            let syn = segment.flags.contains(Flags::SYN);
            if syn {
                self.program.ack = segment.sequence.wrapping_add(1);
            }
            let scale = if syn { 0 } else { 5 };
            self.edge = segment
                .acknowledgment
                .wrapping_add(u32::from(segment.window) << scale);
            // What was dropped is sent again.
            if !syn {
                self.program.seq = segment.acknowledgment;
            }
        }
        !reset
    }

    fn connect(&mut self, bench: &mut Bench) {
        self.program.say(bench, Flags::SYN, b"");
    }

    fn room(&self) -> usize {
        usize::try_from(self.edge.wrapping_sub(self.program.seq).cast_signed()).unwrap_or(0)
    }

    /// One packet within the window. The kernel has checked it.
    fn send(&mut self, bench: &mut Bench) -> usize {
        let len = self.room().min(LARGE);
        if len == 0 {
            return 0;
        }
        let mut bytes = self.template.clone();
        bytes.truncate(40 + len);
        let whole = u16::try_from(40 + len).expect("fits");
        bytes[2..4].copy_from_slice(&whole.to_be_bytes());
        bytes[10..12].copy_from_slice(&[0; 2]);
        let sum: u32 = bytes[..20]
            .chunks(2)
            .map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])))
            .sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let sum = !u16::try_from((folded & 0xffff) + (folded >> 16)).expect("folded");
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes[20..22].copy_from_slice(&self.program.port.to_be_bytes());
        bytes[22..24].copy_from_slice(&self.program.target.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.program.seq.to_be_bytes());
        bytes[28..32].copy_from_slice(&self.program.ack.to_be_bytes());
        bench.take(&IncomingPacket {
            bytes: bytes.into(),
            checked: true,
            segment: None,
        });
        self.program.seq = self
            .program
            .seq
            .wrapping_add(u32::try_from(len).expect("small"));
        len
    }
}

const STUCK: u16 = PORT + 1;

/// An overlay whose streams to one port take nothing.
fn stuck(network: &Network) -> Arc<Double> {
    let far_ends = parking_lot::Mutex::new(Vec::new());
    let others = network.overlay(IpAddr::from([192, 0, 2, 1]));
    let overlay = Double::over(others).streams(move |others, target, terms| match target.port {
        STUCK => {
            let (near, far) = tokio::io::duplex(1);
            far_ends.lock().push(far);
            Box::pin(async { Ok(Stream::new(tokio::io::BufReader::with_capacity(1, near))) })
        }
        _ => others.open_stream(target, terms),
    });
    Arc::new(overlay)
}

/// Sends this many bytes to a target that reads all; answers how often the window was less than a packet in between.
async fn transfer(bench: &mut Bench, listener: &mut Listener, port: u16, bytes: usize) -> usize {
    let mut sender = Sender::new(port, PORT, &Sender::template());
    sender.connect(bench);
    settle().await;
    assert!(sender.listen(bench), "a reset");
    sender.program.say(bench, Flags::ACK, b"");
    let mut far = listener.accept().await;
    let reading = tokio::spawn(async move {
        let (mut buffer, mut got) = (vec![0; LARGE], 0);
        while got < bytes {
            got += far.read(&mut buffer).await.expect("bytes");
        }
        far
    });
    let (first, mut shut, mut sent) = (sender.program.seq, 0, 0);
    while sent < bytes {
        if sender.send(bench) < LARGE {
            shut += 1;
            assert!(shut < 10_000, "it does not go on after {sent}");
        }
        settle().await;
        assert!(sender.listen(bench), "a reset");
        sent = usize::try_from(sender.program.seq.wrapping_sub(first)).expect("fits");
    }
    drop(reading.await.expect("all of it"));
    shut
}

/// This many programs' flows to a target that takes nothing, each as full as it is let.
async fn stall(bench: &mut Bench, flows: u16) {
    let template = Sender::template();
    for port in 0..flows {
        let mut sender = Sender::new(20_000 + port, STUCK, &template);
        sender.connect(bench);
        tokio::task::yield_now().await;
        sender.listen(bench);
        sender.program.say(bench, Flags::ACK, b"");
        for _ in 0..40 {
            if sender.send(bench) == 0 {
                break;
            }
            let before = sender.program.seq;
            sender.listen(bench);
            if sender.program.seq != before {
                break;
            }
        }
        let held = bench.context.tcp_memory.in_use();
        assert!(
            held <= bench.context.config.flows.memory,
            "{held} bytes after {port} flows"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn when_memory_is_short_who_holds_most_is_reset_and_not_another_user_that_waits_for_longer() {
    let network = Network::new(1);
    let mut bench = Bench::over(stuck(&network), network, |config| {
        config.flows.open = When::Optimistic;
    });
    bench.tell_apart(quiet_below_20000);
    let mut quiet = Sender::new(5000, STUCK, &Sender::template());
    quiet.connect(&mut bench);
    tokio::task::yield_now().await;
    quiet.listen(&bench);
    quiet.program.say(&mut bench, Flags::ACK, b"");
    assert!(quiet.send(&mut bench) > 0);
    settle().await;
    assert!(quiet.listen(&bench), "a reset");
    tokio::time::sleep(Duration::from_secs(1)).await;
    stall(&mut bench, 4000).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    bench.router.flush(Instant::now());
    settle().await;
    let mut reset = Vec::new();
    while let Some(bytes) = bench.sink.try_next() {
        let segment = ip::tcp::parse(parsed(&bytes).payload).expect("a segment");
        if segment.flags.contains(Flags::RST) {
            reset.push(segment.destination);
        }
    }
    assert!(bench.context.counters.tcp_stalled.value() > 10);
    assert!(!reset.is_empty() && !reset.contains(&5000), "{reset:?}");
}

#[tokio::test(start_paused = true)]
async fn sixteen_thousand_stalled_flows_hold_no_more_than_the_budget_and_a_newcomer_is_as_fast_as_alone()
 {
    const BYTES: usize = 16 << 20;
    let network = Network::new(1);
    let change = |config: &mut Config| config.flows.open = When::Optimistic;
    let mut bench = Bench::over(stuck(&network), network, change);
    let mut listener = bench.network.listen_at(target());
    let alone = transfer(&mut bench, &mut listener, 5000, BYTES).await;
    stall(&mut bench, 16_000).await;
    assert!(bench.context.tcp_memory.in_use() > 128 << 20);
    // By then their bytes have waited too long for others to wait for them.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let beside = transfer(&mut bench, &mut listener, 5001, BYTES).await;
    assert_eq!(beside, alone);
    let held = bench.context.tcp_memory.in_use();
    assert!(held <= bench.context.config.flows.memory, "{held}");
    assert_eq!(bench.context.counters.tcp_dropped.value(), 0);
}

#[tokio::test(start_paused = true)]
async fn in_a_flood_of_syns_the_oldest_make_room_and_others_get_through() {
    let (mut bench, mut listener) = bench_of(When::Auto, 40);
    bench.network.silence(SocketAddr::new(TARGET, PORT + 1));
    for port in 6000..6100 {
        Program::to(port, PORT + 1).say(&mut bench, Flags::SYN, b"");
        settle().await;
    }
    assert_eq!(
        bench.context.counters.tcp_evicted.value(),
        90,
        "ten may be half-open"
    );
    let open =
        bench.context.counters.tcp_opened.value() - bench.context.counters.tcp_closed.value();
    assert_eq!(open, 10);
    connected(&mut bench, &mut listener).await;
    assert_eq!(bench.context.counters.tcp_dropped.value(), 0);
}

#[tokio::test(start_paused = true)]
async fn optimistic_connections_whose_targets_do_not_answer_make_room_too() {
    let (mut bench, _listener) = bench_of(When::Optimistic, 40);
    bench.network.silence(target());
    for port in 6000..6030 {
        // Those that make room are reset meanwhile.
        while bench.sink.try_next().is_some() {}
        Program::new(port).connect(&mut bench).await;
        settle().await;
    }
    assert_eq!(
        bench.context.counters.tcp_evicted.value(),
        20,
        "ten may be half-open"
    );
}

#[tokio::test(start_paused = true)]
async fn who_opens_more_than_there_is_room_for_waits_and_is_not_reset_to_try_again() {
    let (mut bench, mut listener) = bench_of(When::Auto, 40);
    // From now on the target is trusted; it takes its time.
    let _first = connected(&mut bench, &mut listener).await;
    bench.network.silence(target());
    let (mut answered, mut reset) = (0, 0);
    for port in 6000..6100 {
        Program::new(port).say(&mut bench, Flags::SYN, b"");
        settle().await;
        while let Some(bytes) = bench.sink.try_next() {
            let segment = ip::tcp::parse(parsed(&bytes).payload).expect("a segment");
            answered += u32::from(segment.flags.contains(Flags::SYN));
            reset += u32::from(segment.flags.contains(Flags::RST));
        }
    }
    assert!(
        matches!(answered, 9 | 10),
        "{answered}: ten may be half-open"
    );
    assert!(reset <= 1, "{reset} were answered and then reset");
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_syns_does_not_reset_a_connection_that_was_answered_before_the_far_end() {
    let (mut bench, mut listener) = bench_of(When::Auto, 40);
    // From now on the target is trusted.
    let _first = connected(&mut bench, &mut listener).await;
    bench.network.silence(target());
    bench.network.silence(SocketAddr::new(TARGET, PORT + 1));
    Program::new(5001).connect(&mut bench).await;
    for port in 6000..6100 {
        Program::to(port, PORT + 1).say(&mut bench, Flags::SYN, b"");
        settle().await;
    }
    assert!(bench.context.counters.tcp_evicted.value() >= 90);
    while let Some(bytes) = bench.sink.try_next() {
        let segment = ip::tcp::parse(parsed(&bytes).payload).expect("a segment");
        let is_reset = segment.flags.contains(Flags::RST);
        assert!(!is_reset || segment.destination != 5001, "it is reset");
    }
}

#[tokio::test(start_paused = true)]
async fn who_speaks_of_a_connection_that_is_not_there_gets_a_reset() {
    let mut bench = Bench::new();
    let mut program = Program::new(5000);
    program.ack = 99;
    program.say(&mut bench, Flags::ACK, b"who are you");
    let reset = program.hear(&bench).await.header;
    assert_eq!((reset.flags, reset.sequence), (Flags::RST, 99));
    program.say(&mut bench, Flags::FIN, b"who are you");
    let reset = program.hear(&bench).await.header;
    assert_eq!(reset.flags, Flags::RST | Flags::ACK);
    assert_eq!(reset.acknowledgment, program.seq);
    program.say(&mut bench, Flags::RST, b"");
    assert!(bench.sink.try_next().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_table_resets_every_connection() {
    let (mut bench, mut listener) = bench(When::Optimistic);
    let (_program, mut far) = connected(&mut bench, &mut listener).await;
    settle().await;
    let Bench { sink, router, .. } = bench;
    drop(router);
    settle().await;
    let bytes = sink.try_next().expect("a reset");
    let segment = ip::tcp::parse(parsed(&bytes).payload).expect("a segment");
    assert!(segment.header().flags.contains(Flags::RST));
    assert!(far.read_u8().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_port_that_was_full_gets_what_it_missed_later() {
    let (mut bench, mut listener) = bench(When::Optimistic);
    let (mut program, mut far) = connected(&mut bench, &mut listener).await;
    bench.sink.set_full(true);
    far.write_all(b"lost").await.expect("open");
    settle().await;
    bench.sink.set_full(false);
    assert_eq!(program.hear(&bench).await.payload, b"lost");
}

#[tokio::test(start_paused = true)]
async fn a_target_that_reads_no_more_is_heard_to_its_end_and_then_the_program_is_reset() {
    let mut bench = Bench::with(|config| config.flows.open = When::Optimistic);
    let deaf = Double::nothing()
        .streams(|_, _, _| Box::pin(async { Ok(Stream::new(Unheard::default())) }));
    behind(&mut bench, Arc::new(deaf));
    let mut program = Program::new(5000);
    program.connect(&mut bench).await;
    program.say(&mut bench, Flags::ACK, b"question");
    let mut got = Vec::new();
    loop {
        let Got { header, payload } = program.hear(&bench).await;
        got.extend(payload);
        if header.flags.contains(Flags::RST) {
            break;
        }
        assert!(!header.flags.contains(Flags::FIN));
        program.say(&mut bench, Flags::ACK, b"");
    }
    assert_eq!(got, b"answer");
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_segment_for_hours_is_reset_at_both_ends() {
    let (mut bench, mut listener) = bench(When::Optimistic);
    let (mut program, mut far) = connected(&mut bench, &mut listener).await;
    let limit = bench.context.config.flows.idle_stream;
    let start = Instant::now();
    assert!(program.hear(&bench).await.header.flags.contains(Flags::RST));
    assert!(start.elapsed() >= limit - LATENCY && start.elapsed() < limit * 2);
    assert!(far.read_u8().await.is_err());
    settle().await;
    let snapshot = bench.context.counters.snapshot();
    assert_eq!((snapshot.tcp_idle, snapshot.tcp_closed), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_programs_keep_alives_keep_its_connection() {
    let (mut bench, mut listener) = bench(When::Optimistic);
    let (mut program, mut far) = connected(&mut bench, &mut listener).await;
    let limit = bench.context.config.flows.idle_stream;
    for _ in 0..5 {
        tokio::time::sleep(limit - Duration::from_secs(1)).await;
        // RFC 9293 §3.8.4: one before the next byte.
        program.seq -= 1;
        program.say(&mut bench, Flags::ACK, b"");
        program.seq += 1;
        let answer = program.hear(&bench).await.header;
        assert_eq!(
            (answer.flags, answer.acknowledgment),
            (Flags::ACK, program.seq)
        );
    }
    far.write_all(b"still there").await.expect("open");
    assert_eq!(program.hear(&bench).await.payload, b"still there");
    assert_eq!(bench.context.counters.tcp_idle.value(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_a_connection_rests_for_ever() {
    let change = |config: &mut Config| config.flows.idle_stream = Duration::ZERO;
    let mut bench = Bench::with(change);
    let mut listener = bench.network.listen_at(target());
    let (mut program, mut far) = connected(&mut bench, &mut listener).await;
    tokio::time::sleep(Duration::from_secs(1_000_000)).await;
    far.write_all(b"still there").await.expect("open");
    assert_eq!(program.hear(&bench).await.payload, b"still there");
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_segments_is_answered_by_one_packet() {
    let (mut bench, mut listener) = bench(When::Optimistic);
    let (mut program, far) = connected(&mut bench, &mut listener).await;
    settle().await;
    let before = bench.sink.writes();
    for _ in 0..20 {
        let packet = program.packet(Flags::ACK, b"0123456789");
        let incoming = IncomingPacket {
            bytes: packet.into(),
            checked: true,
            segment: None,
        };
        bench.router.take(&incoming, Instant::now());
    }
    bench.router.flush(Instant::now());
    assert_eq!(bench.sink.writes() - before, 1);
    assert_eq!(
        program.hear(&bench).await.header.acknowledgment,
        program.seq
    );
    drop(far);
}

#[tokio::test]
async fn ten_thousand_flows_at_rest_own_a_few_megabytes() {
    let bench = Bench::new();
    let table = TcpTable::new(Arc::clone(&bench.context));
    let header = Header {
        flags: Flags::SYN,
        ..Header::default()
    };
    let bytes = tcp_packet(PROGRAM, TARGET, &header, b"");
    let syn = ip::tcp::parse(parsed(&bytes).payload).expect("a segment");
    let now = Instant::now();
    let (program, target) = (SocketAddr::new(PROGRAM, 1), target());
    let key = FlowKey { program, target };
    let account = bench
        .context
        .tcp_memory
        .open(User::at(PROGRAM), Host::ip(TARGET), 4096);
    let connection = Connection::new(&syn, table.settings(key, now));
    let flow = TcpFlow::new(key, connection, account.expect("there is room"));
    let in_table = size_of_val(&flow);
    let flow = Arc::new(flow);
    let (half_open, _) = SynBacklog::new(1).admit(&flow);
    let order = OpenRequest {
        target: target.into(),
        early: false,
        cause: None,
    };
    let task = FlowTask::new(&table.shared, &flow, now).run(order, half_open);
    let all = (in_table + size_of_val(&task)) * 10_000;
    assert!(all < 20_000_000, "{all} bytes");
}

/// Of a machine, and of a network behind it.
#[tokio::test(start_paused = true)]
async fn flows_of_two_users_share_nothing_where_they_are_to_be_apart() {
    for isolate_users in [false, true] {
        let (asked, mut tokens) = tokio::sync::mpsc::unbounded_channel();
        let datagrams = asked.clone();
        let overlay = Double::nothing()
            .streams(move |_, _, terms| {
                asked
                    .send(terms.isolation.clone())
                    .expect("somebody listens");
                Box::pin(std::future::pending())
            })
            .datagrams(move |_, _, terms| {
                datagrams
                    .send(terms.isolation.clone())
                    .expect("somebody listens");
                Box::pin(std::future::pending())
            });
        let mut bench = Bench::over(Arc::new(overlay), Network::new(1), |config| {
            config.device.isolate_users = isolate_users;
        });
        // Of one user another control group is the same user.
        bench.tell_apart(|port| User::local(u32::from(port / 100), port.into()));
        let mut heard = Vec::new();
        for port in [5000, 5001, 6000] {
            Program::new(port).say(&mut bench, Flags::SYN, b"");
            heard.push(tokens.recv().await.expect("a stream"));
            let (from, to) = (SocketAddr::new(PROGRAM, port), SocketAddr::new(TARGET, 443));
            bench.send(udp_packet(from, to, b"hello"));
            heard.push(tokens.recv().await.expect("a flow of datagrams"));
        }
        assert!(heard[..4].iter().all(|token| *token == heard[0]));
        assert!(heard[4..].iter().all(|token| *token == heard[4]));
        assert_eq!(heard[0] != heard[4], isolate_users);
    }
}

/// What programs send to the address of an onion service goes there by its name alone, with their isolation; datagrams do not.
#[tokio::test(start_paused = true)]
async fn flows_to_the_address_of_an_onion_service_carry_its_name_and_datagrams_are_refused() {
    const SERVICE: &str = "pg6mmjiyjmcrsslvykfwnntlaru7p5svn6y2ymmju6nubxndf4pscryd.onion";
    let (asked, mut streams) = tokio::sync::mpsc::unbounded_channel();
    let overlay = Double::nothing().streams(move |_, target, _| {
        asked.send(target.clone()).expect("somebody listens");
        Box::pin(std::future::pending())
    });
    let mut bench = Bench::over(Arc::new(overlay), Network::new(1), |config| {
        config.dns.onion_services = true;
    });
    let name = HostName::new(SERVICE).expect("valid");
    let user = User::local(1000, 1);
    let pair = bench.context.names.pair(&name, user, Instant::now());
    let address: IpAddr = pair.expect("an address").v4.into();
    let mut program = Program {
        host: address,
        ..Program::to(5000, 80)
    };
    program.say(&mut bench, Flags::SYN, b"");
    let target = streams.recv().await.expect("a stream is asked for");
    assert_eq!(target, Target::new(Host::Name(name), 80).expect("valid"));
    let to = SocketAddr::new(address, 443);
    bench.send(udp_packet(SocketAddr::new(PROGRAM, 5001), to, b"hello"));
    let bytes = bench.sink.next().await;
    let packet = parsed(&bytes);
    assert_eq!((packet.protocol, packet.source), (ip::ICMP, address));
    assert_eq!(packet.payload[0], 3, "unreachable");
}
