"""The staging box: kpro5, and CT129 inside it, as nested LXC containers on one machine (see README.md)."""
