# A fleet of relays under one name: nomad job run deploy/nomad/relay.nomad.hcl. It was tried with no Nomad yet.
# docs/operating.md, "A fleet", says what to change first.
# Secrets are Nomad variables of the path nomad/jobs/relay: cert_pem, key_pem, fleet_key, users_token;
# with private tokens issuer_keys and spent_store_url, and what is commented below.
job "relay" {
  datacenters = ["dc1"]
  type        = "service"

  # One relay after the other; the next when this one is healthy.
  update {
    max_parallel     = 1
    min_healthy_time = "10s"
    auto_revert      = true
  }

  group "relay" {
    count = 2

    # By the metrics of the relays: needs nomad-autoscaler with Prometheus.
    scaling {
      enabled = true
      min     = 2
      max     = 20
      policy {
        cooldown = "5m"
        check "connections" {
          source = "prometheus"
          query  = "sum(hoplite_relay_connections_open) / count(count by (instance) (hoplite_relay_connections_open))"
          strategy "target-value" {
            target = 20000
          }
        }
      }
    }

    network {
      mode = "host"
      port "relay" { static = 443 }
      port "metrics" {
        static       = 9090
        host_network = "management"
      }
    }

    # Two relays on one host would have one port.
    constraint {
      operator = "distinct_hosts"
      value    = "true"
    }

    service {
      name     = "relay"
      port     = "relay"
      provider = "nomad"
      # 503 from the moment that the relay drains.
      check {
        type     = "http"
        path     = "/ready"
        port     = "metrics"
        interval = "2s"
        timeout  = "1s"
      }
    }

    # The service leaves the catalogue this long before SIGTERM.
    shutdown_delay = "5s"

    task "relay" {
      driver = "docker"
      user   = "10001:10001"
      # The relay's 30 s of drain, and the time to close.
      kill_signal  = "SIGTERM"
      kill_timeout = "50s"

      config {
        image        = "registry.example.org/hoplite:0.2.0"
        network_mode = "host"
        args         = ["relay", "--config", "/secrets/relay.toml"]
        cap_drop     = ["all"]
        cap_add      = ["net_bind_service"]
      }

      # The number of the allocation is the number by which the balancer knows the relay.
      template {
        destination = "secrets/relay.toml"
        uid         = 10001
        perms       = "0400"
        data        = <<TOML
name = "relay"
identity = "identity"

[[auth.token]]
name = "users"
file = "users.token"

# Tokens that nobody can link, spent once in the whole fleet (docs/tokens.md).
# [auth.private_tokens]
# issuer = "issuer.example.org"
# origin = "relay.example.org"
# keys = "issuer-keys.json"
# [auth.private_tokens.store]
# url_file = "spent-store.url"

[fleet]
config = 0
server_id = "{{ env "NOMAD_ALLOC_INDEX" | parseInt | printf "%04x" }}"
key = "fleet.key"

[metrics]
listen = "{{ env "NOMAD_ADDR_metrics" }}"
TOML
      }

      template {
        destination = "secrets/identity/cert.pem"
        uid         = 10001
        perms       = "0400"
        data        = "{{ with nomadVar \"nomad/jobs/relay\" }}{{ .cert_pem }}{{ end }}"
      }
      template {
        destination = "secrets/identity/key.pem"
        uid         = 10001
        perms       = "0400"
        data        = "{{ with nomadVar \"nomad/jobs/relay\" }}{{ .key_pem }}{{ end }}"
      }
      template {
        destination = "secrets/fleet.key"
        uid         = 10001
        perms       = "0400"
        data        = "{{ with nomadVar \"nomad/jobs/relay\" }}{{ .fleet_key }}{{ end }}"
      }
      # Read again on SIGHUP.
      template {
        destination   = "secrets/users.token"
        uid           = 10001
        perms         = "0400"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        data          = "{{ with nomadVar \"nomad/jobs/relay\" }}{{ .users_token }}{{ end }}"
      }
      # template {
      #   destination   = "secrets/issuer-keys.json"
      #   uid           = 10001
      #   perms         = "0400"
      #   change_mode   = "signal"
      #   change_signal = "SIGHUP"
      #   data          = "{{ with nomadVar \"nomad/jobs/relay\" }}{{ .issuer_keys }}{{ end }}"
      # }
      # template {
      #   destination   = "secrets/spent-store.url"
      #   uid           = 10001
      #   perms         = "0400"
      #   change_mode   = "signal"
      #   change_signal = "SIGHUP"
      #   data          = "{{ with nomadVar \"nomad/jobs/relay\" }}{{ .spent_store_url }}{{ end }}"
      # }

      resources {
        cpu    = 2000
        memory = 1024
      }
    }
  }
}
