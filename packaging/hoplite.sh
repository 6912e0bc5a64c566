# A stop of hoplite-block opens, a signal to its process does not: systemd starts the new program, and with it the device, which requires it. While
# neither is there the firewall's table stands.
restart() {
    if systemctl --quiet is-active hoplite-block.service; then
        systemctl kill hoplite-block.service
    else
        systemctl --no-block try-restart hoplite-device.service
    fi
    systemctl --no-block try-restart hoplite-relay.service
}

# Also where `hoplite up` was called by hand, or has left a block behind. What stands does so in a network whose /run has this directory: a root that is
# only somebody's image has none.
open() {
    [ -d /run/hoplite ] || return 0
    for socket in /run/hoplite/*.sock; do
        [ ! -S "$socket" ] || hoplite down --name "$(basename "$socket" .sock)" >/dev/null || true
    done
    if ! hoplite down >/dev/null; then
        echo "$name: the machine may still be blocked, and hoplite is what opens it: it stays installed. As root, 'hoplite down' says what is wrong" >&2
        return 1
    fi
    rm -rf /run/hoplite
}

purged() {
    rm -rf /etc/hoplite /var/lib/hoplite-relay /var/lib/private/hoplite-relay
    if has groupdel && getent group hoplite >/dev/null; then groupdel hoplite; fi
}
