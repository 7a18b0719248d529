"""What every request passes before its body is read: route, key, rate, deadline and admission; and its record."""
