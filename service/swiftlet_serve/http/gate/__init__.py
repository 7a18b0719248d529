"""The checks of every request before its body is read: route, key, rate, deadline and admission; and its record."""
