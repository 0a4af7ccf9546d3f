package dev.spry.core.data;

/** What one side said in a conversation. */
public final class Message {
    public static final String SYSTEM = "system";
    public static final String USER = "user";
    /** The role whose turns are learnt. */
    public static final String ASSISTANT = "assistant";

    public final String role;
    public final String content;

    public Message(String role, String content) {
        this.role = role;
        this.content = content;
    }
}
