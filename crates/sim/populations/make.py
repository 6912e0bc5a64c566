"""Makes synthetic.consensus: 120 relays that do not exist, as a consensus of Tor's has them. docs/sim.md, "The directory".

Weights are log-normal (median 6,000 kB/s, sigma 1.4). Two of three relays are guards, one of four an exit; the faster, the likelier. What is signed
by whom is made up, too.
"""

import base64
import random

RELAYS = 120
PROTOCOLS = ("Conflux=1 Cons=1-2 Desc=1-4 DirCache=2 FlowCtrl=1-2 HSDir=2 HSIntro=4-5 HSRend=1-2 Link=3-5 "
             "LinkAuth=3 Microdesc=1-3 Padding=2 Relay=2-6")


def text(drawn, size):
    return base64.b64encode(drawn.randbytes(size)).decode().rstrip("=")


def flags(drawn, weight):
    fast = min(1.0, weight / 12_000)
    found = {"Running", "Valid"}
    chances = {"Guard": 0.35 + 0.5 * fast, "Exit": 0.15 + 0.2 * fast, "Stable": 0.8, "Fast": 0.98, "V2Dir": 0.97, "HSDir": 0.75}
    found.update(flag for flag, chance in chances.items() if drawn.random() < chance)
    if "Guard" in found:
        found.update({"Stable", "Fast", "V2Dir"})
    return " ".join(sorted(found))


def main():
    drawn = random.Random(1)
    relays = []
    for number in range(RELAYS):
        weight = max(1, round(drawn.lognormvariate(8.7, 1.4)))
        relays.append((drawn.randbytes(20), number, weight))
    print("network-status-version 3 microdesc\nvote-status consensus\nconsensus-method 35")
    print("valid-after 2026-11-26 00:00:00\nfresh-until 2026-11-26 01:00:00\nvalid-until 2026-11-26 03:00:00")
    print("@note synthetic, by populations/make.py: none of these relays exists")
    for identity, number, weight in sorted(relays):
        encoded = base64.b64encode(identity).decode().rstrip("=")
        print(f"r relay{number} {encoded} 2038-01-01 00:00:00 198.18.0.{number + 1} 9001 0")
        print(f"m {text(drawn, 32)}\ns {flags(drawn, weight)}\nv Tor 0.4.9.11\npr {PROTOCOLS}\nw Bandwidth={weight}")
    print("directory-footer\nbandwidth-weights Wbd=0 Wbe=0 Wbg=4194 Wbm=10000 Wdb=10000 Web=10000 Wed=10000 Wee=10000 Weg=10000 "
          "Wem=10000 Wgb=10000 Wgd=0 Wgg=5806 Wgm=5806 Wmb=10000 Wmd=0 Wme=0 Wmg=4194 Wmm=10000")
    signer = drawn.randbytes(20).hex().upper()
    print(f"directory-signature sha256 {signer} {signer}\n-----BEGIN SIGNATURE-----")
    signature = base64.b64encode(drawn.randbytes(256)).decode()
    for start in range(0, len(signature), 64):
        print(signature[start:start + 64])
    print("-----END SIGNATURE-----")


if __name__ == "__main__":
    main()
