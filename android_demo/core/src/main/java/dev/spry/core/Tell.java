package dev.spry.core;

/** Hears what happens to a client: a screen, a notification, a log. */
public interface Tell {
    Tell SILENT = event -> { };

    void tell(Event event);
}
