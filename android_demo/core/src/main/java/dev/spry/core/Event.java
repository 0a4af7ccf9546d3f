package dev.spry.core;

import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

import dev.spry.core.wire.Bounds;

/**
 * What happens to a client, told as it happens, in texts that steer no terminal whoever wrote them. Kinds are part of the interface:
 * enrolled, task, download, progress, resumed, evaluated, uploaded, refused, failed, waiting, unreachable, reachable,
 * warning, stopped.
 */
public final class Event {
    public final String kind;
    public final String message;
    /** Texts, numbers and truth values by name. */
    public final Map<String, Object> details;

    private Event(String kind, String message, Map<String, Object> details) {
        this.kind = kind;
        this.message = Bounds.shown(message);
        this.details = details;
    }

    public static Event of(String kind, String message) {
        return new Event(kind, message, Collections.<String, Object>emptyMap());
    }

    /** The same with one more detail. */
    public Event with(String name, Object value) {
        Map<String, Object> more = new LinkedHashMap<>(details);
        more.put(name, value instanceof String ? Bounds.shown((String) value) : value);
        return new Event(kind, message, Collections.unmodifiableMap(more));
    }
}
