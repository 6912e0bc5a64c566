//! A client's circuit: all of its relays are one hostile party, who answers handshakes and says what it likes from any hop.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use hoplite_onion::{
    client::{Asks, ClientCircuit},
    conflux::LegId,
    endpoint::{
        Arrival, Endpoint, HALF_CLOSE, Role,
        io::{Handle, Shared},
    },
    flow_control::Control,
    relay::{self, Forward},
};
use hoplite_wire::{
    Protocols, Target,
    cell::{
        Cell, CircuitId, Command,
        circuit::{Create2, Extend2},
        relay::{self as message, Flags, Header, Message, Sendme, SendmeTag, StreamId},
    },
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use crate::{Input, KEYS, LIMITS, MOST, Said, known, relay_cell, zeros};

const TARGETS: [&str; 3] = ["192.0.2.7:80", "[2001:db8::7]:443", "site.example:443"];

struct Client {
    circuit: ClientCircuit,
    shared: Arc<Shared>,
    handles: Vec<Handle>,
    relays: Vec<relay::RelayCircuit>,
    offers: relay::Offers,
    control: Control,
    /// DATA cells that came since the last that is to be acknowledged, and the tags of those.
    since: u32,
    due: VecDeque<SendmeTag>,
    now: Instant,
    open: bool,
}

pub(crate) fn run(who: u8, input: &mut Input<'_>) {
    let mut client = Client::new(who);
    while let (true, Some(what)) = (client.open, input.next()) {
        client.step(what, input);
        let endpoint = client.shared.lock();
        assert!(endpoint.streams() <= LIMITS.streams);
        assert!(endpoint.owned() < MOST, "{}", endpoint.owned());
    }
    client.end();
}

impl Client {
    fn new(who: u8) -> Self {
        let hops = 1 + usize::from(who % 3);
        let offers = relay::Offers {
            congestion_control: who & 8 == 0,
            cgo: who & 24 == 0,
        };
        // A relay says no more than is true; every second one says nothing.
        let protocols = |n: usize| match offers.cgo && (n + usize::from(who >> 5)).is_multiple_of(2) {
            true => Protocols::CGO,
            false => Protocols::NONE,
        };
        let relays = (0..hops).map(|n| known(n, who & 4 == 0, protocols(n)));
        let asks = Asks {
            congestion_control: true,
            cgo: true,
        };
        let circuit = ClientCircuit::new(CircuitId::new(1), relays.collect(), asks, zeros);
        Self {
            circuit: circuit.expect("a path"),
            shared: Shared::new(Endpoint::new(Role::Client, Control::Fixed, LIMITS, zeros)),
            handles: Vec::new(),
            relays: Vec::new(),
            offers,
            control: Control::Fixed,
            since: 0,
            due: VecDeque::new(),
            now: Instant::now(),
            open: true,
        }
    }

    fn step(&mut self, what: u8, input: &mut Input<'_>) {
        match what % 16 {
            0 => self.hear_any(),
            1 => self.build(),
            2 => drop(self.hear((input.byte(), input.byte()))),
            3 => input.cell().into_iter().for_each(|cell| self.tell(cell)),
            4 => self.say(input.byte(), &input.said()),
            5 => self.flood(input),
            6 => self.acknowledge(),
            7 => self.begin(input.byte()),
            8 => self.write(input.byte(), input.byte()),
            9 => self.read(input.byte()),
            10 => self.finish(input.byte()),
            11 => drop(
                self.handle(input.byte())
                    .map(|place| self.handles.swap_remove(place)),
            ),
            12 => (0..input.byte()).for_each(|_| self.hear_any()),
            13 => self.now += Duration::from_millis(input.byte().into()),
            14 => self.answer(input.byte()),
            _ => self.shared.lock().retire(),
        }
    }

    /// Hears handshakes and answers them until all hops are there.
    fn build(&mut self) {
        for _ in 0..3 {
            self.hear((0, 0));
        }
    }

    fn hear_any(&mut self) {
        self.hear((0, 0));
    }

    /// What the client says next: every cell of it is for one of its relays. Handshakes are answered, one byte changed.
    fn hear(&mut self, change: (u8, u8)) -> Option<()> {
        let mut cell = self.circuit.next(&mut self.shared.lock(), self.now)?;
        if cell.command == Command::CREATE2 {
            let create = Create2::parse(&cell.body).expect("as it should be");
            let created = changed(self.join(&create), change);
            let cell = Cell::new(CircuitId::new(1), Command::CREATED2, |out| {
                out.extend_from_slice(&created)
            });
            self.tell(cell.expect("fits"));
            return Some(());
        }
        for hop in 0..self.relays.len() {
            match self.relays[hop]
                .forward(cell)
                .expect("a client keeps to the protocol")
            {
                Forward::Next(next) => cell = next,
                Forward::Here(cell, tag) => {
                    self.heard(hop, cell, tag, change);
                    return Some(());
                }
            }
        }
        unreachable!("a cell for nobody");
    }

    fn heard(&mut self, hop: usize, mut cell: Cell, tag: SendmeTag, change: (u8, u8)) {
        let body = cell.fixed().expect("a body");
        let header = Header::read(self.relays[hop].format(), body);
        let header = header.expect("a client keeps to the protocol");
        let data = header.data(body).expect("it fits");
        match header.command {
            message::RelayCommand::EXTEND2 => {
                let extend = Extend2::parse(data).expect("as it should be");
                let created = changed(self.join(&extend.create), change);
                let command = message::RelayCommand::EXTENDED2;
                self.originate(hop, &Said::new(command, StreamId::CIRCUIT, &created));
            }
            message::RelayCommand::DATA => {
                self.since += 1;
                if self.since == self.control.increment() {
                    self.since = 0;
                    self.due.push_back(tag);
                }
            }
            _ => {}
        }
    }

    fn join(&mut self, create: &Create2<'_>) -> Vec<u8> {
        let made =
            relay::RelayCircuit::create(&KEYS[self.relays.len()], create, self.offers);
        let (relay, control, created) = made.expect("a client's handshake is good");
        self.relays.push(relay);
        self.control = control;
        created
    }

    fn say(&mut self, hop: u8, said: &Said) {
        if !self.relays.is_empty() {
            self.originate(usize::from(hop) % self.relays.len(), said);
        }
    }

    fn originate(&mut self, hop: usize, said: &Said) {
        let body = said.body(self.relays[hop].format());
        let mut cell = relay_cell(Command::RELAY, body);
        self.relays[hop].originate(&mut cell).expect("a body");
        for relay in self.relays[..hop].iter_mut().rev() {
            relay.backward(&mut cell).expect("a body");
        }
        self.tell(cell);
    }

    /// As its driver does, a circuit that is full sends before it receives.
    fn tell(&mut self, cell: Cell) {
        while self.shared.lock().is_full(LegId::FIRST) {
            self.hear((0, 0)).expect("what makes it full can be sent");
        }
        let at = Arrival {
            leg: LegId::FIRST,
            now: self.now,
            blocked: false,
        };
        let mut endpoint = self.shared.lock();
        if let Err(error) = self.circuit.handle(cell, &mut endpoint, at) {
            endpoint.close(error);
            self.open = false;
        }
    }

    fn flood(&mut self, input: &mut Input<'_>) {
        let (stream, count, length) = (input.byte(), input.byte(), input.byte());
        let data = vec![7; usize::from(length)];
        let said = Said::new(message::RelayCommand::DATA, StreamId(stream.into()), &data);
        for _ in 0..u16::from(count) * 4 {
            if let (true, Some(last)) = (self.open, self.relays.len().checked_sub(1)) {
                self.originate(last, &said);
            }
        }
    }

    /// A SENDME that is due, or one that is not.
    fn acknowledge(&mut self) {
        let tag = self.due.pop_front().unwrap_or(SendmeTag::Tor1([9; 20]));
        self.from_last(0, &Message::Sendme(Sendme::V1(tag)));
    }

    fn answer(&mut self, stream: u8) {
        let connected = message::Connected(None);
        self.from_last(stream, &Message::Connected(connected));
    }

    fn from_last(&mut self, stream: u8, message: &Message<'_>) {
        let mut data = Vec::new();
        message.write(&mut data);
        let Some(last) = self.relays.len().checked_sub(1) else {
            return;
        };
        let stream = StreamId(stream.into());
        self.originate(last, &Said::new(message.command(), stream, &data));
    }

    /// As programs can, once all hops are there: the format of a message is agreed upon by then.
    fn begin(&mut self, what: u8) {
        let (there, all) = self.circuit.hops();
        if there < all {
            return;
        }
        let mut endpoint = self.shared.lock();
        let target = |n: u8| {
            TARGETS[usize::from(n) % 3]
                .parse::<Target>()
                .expect("a target")
        };
        let begun = match what % 8 {
            0 => endpoint.resolve("site.example"),
            1 => endpoint.begin_directory(),
            2..=4 => endpoint.begin(&target(what), HALF_CLOSE),
            _ => endpoint.begin(&target(what), Flags::IPV6_OKAY),
        };
        drop(endpoint);
        self.handles
            .extend(begun.map(|id| Handle::new(&self.shared, id)));
    }

    fn handle(&self, which: u8) -> Option<usize> {
        usize::from(which).checked_rem(self.handles.len())
    }

    fn write(&mut self, which: u8, count: u8) {
        let Some(place) = self.handle(which) else {
            return;
        };
        let bytes = vec![5; usize::from(count) * 64];
        drop(Pin::new(&mut self.handles[place]).poll_write(&mut noop(), &bytes));
    }

    fn read(&mut self, which: u8) {
        let Some(place) = self.handle(which) else {
            return;
        };
        drop(read(&mut self.handles[place]));
        drop(self.handles[place].poll_said(&mut noop()));
    }

    fn finish(&mut self, which: u8) {
        let Some(place) = self.handle(which) else {
            return;
        };
        drop(Pin::new(&mut self.handles[place]).poll_shutdown(&mut noop()));
    }

    /// Whoever reads a stream of a closed circuit comes to its end.
    fn end(mut self) {
        if self.open {
            let error =
                hoplite_overlay::Error::new(hoplite_overlay::ErrorKind::PathFailed, "ending");
            self.shared.lock().close(error);
        }
        for handle in &mut self.handles {
            while let 1.. = match read(handle) {
                Poll::Ready(read) => read.unwrap_or(0),
                Poll::Pending => unreachable!("a stream outlives its circuit"),
            } {}
        }
        drop(self.handles);
        assert_eq!(self.shared.lock().streams(), 0);
    }
}

fn read(handle: &mut Handle) -> Poll<std::io::Result<usize>> {
    let mut space = [0; 4096];
    let mut buf = ReadBuf::new(&mut space);
    let read = Pin::new(handle).poll_read(&mut noop(), &mut buf);
    read.map_ok(|()| buf.filled().len())
}

fn noop() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// One byte of it, if there are so many.
fn changed(mut created: Vec<u8>, (place, bits): (u8, u8)) -> Vec<u8> {
    if let Some(byte) = created.get_mut(usize::from(place)) {
        *byte ^= bits;
    }
    created
}
