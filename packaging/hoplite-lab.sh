purged() {
    rm -rf /etc/hoplite-lab /var/lib/hoplite-monitor
    if has userdel && getent passwd hoplite-monitor >/dev/null; then userdel hoplite-monitor; fi
}
