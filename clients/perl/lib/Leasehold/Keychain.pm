package Leasehold::Keychain;

# The keychain process and the lines that go to and from it.
#
# In:    requests. Out: their answers; events, for the manager that started it.
# Never: waits for a process that is gone, or leaves a claim behind that nobody waits for any more.

use strict;
use warnings;

use Errno qw(EAGAIN EINTR EWOULDBLOCK);
use Fcntl qw(F_GETFL F_SETFL F_SETOWN O_ASYNC O_NONBLOCK);
use JSON::PP ();
use POSIX    ();
use Scalar::Util qw(refaddr weaken);
use Time::HiRes qw(CLOCK_MONOTONIC clock_gettime);

use Leasehold::Error;
use Leasehold::Process;

our $VERSION = '0.2.0';

# CLOCK_BOOTTIME of Linux, for which Time::HiRes has no name.
my $CLOCK_BOOTTIME = 7;

# The keychain answers questions about itself at once; one that does not by then is stopped or stuck.
my $ANSWER_LIMIT = 15;
# A signal handler of the program that asks something may take in our answer just before we start to wait for it.
my $WAIT_MAX = 1;

# A signal that is ignored by default, so that it harms no program that this one becomes by exec. Where the system can't
# choose, it sends SIGIO.
my $CHOOSE_SIGNAL = eval { Fcntl::F_SETSIG() };
my $SIGNAL        = defined $CHOOSE_SIGNAL ? 'URG' : 'IO';

# Longest line that the keychain reads.
my $LINE_LEN_MAX = 1_048_576;
# Perl writes any number as a character; JSON is UTF-8, and the keychain could not tell whose line it was.
my $NO_UNICODE = qr/\xED[\xA0-\xBF]|\xF4[\x90-\xBF]|[\xF5-\xFF]/x;

my $JSON = JSON::PP->new->utf8->canonical->allow_nonref;
my %RUNNING;           # the keychains of this process, weak
my $HANDLER_BEFORE;    # the program's own handler for $SIGNAL

# `on_event` only takes note of an event; `on_idle` may run code of the program.
sub start {
    my ( $class, %arg ) = @_;
    my ( $to, $from ) = Leasehold::Process::spawn( $arg{command}, $arg{env} );
    my $self = bless {
        to       => $to,
        from     => $from,
        owner    => Leasehold::Process::worker(),
        buffer   => q{},    # what came after the last whole line
        next_id  => 1,
        waiting  => {},     # requests on their way
        answers  => {},     # answers that nobody has fetched yet
        asking   => 0,      # whether somebody waits for an answer, and signals need not be listened to
        on_event => $arg{on_event},
        on_idle  => $arg{on_idle},
    }, $class;
    weaken( $RUNNING{ refaddr $self } = $self );
    $self->_listen;
    $self->{pid} = $self->ask( { op => 'ping' } )->{pid};
    return $self;
}

sub pid     { my ($self) = @_; return $self->{pid} }
sub is_gone { my ($self) = @_; return $self->{is_gone} }
sub is_mine { my ($self) = @_; return $self->{owner} eq Leasehold::Process::worker() }

sub answer_limit { return $ANSWER_LIMIT }

# Sends a request and waits for its answer, at most `limit` seconds. `then` makes something of the answer before
# anything can get in between; `undo` is sent if nobody waits for the answer any more; `about` returns what a handler
# of a refusal needs; `begun` is called when no exception can keep the request from being written any more.
sub ask {
    my ( $self, $line, %arg ) = @_;
    my $limit   = exists $arg{limit} ? $arg{limit} : $ANSWER_LIMIT;
    my $end     = defined $limit ? now() + $limit : undef;
    my $request = Leasehold::Keychain::Request->new( $self, $arg{undo} );
    # While it waits no signal is listened to. What came with an exception, or right behind the answer, is heard then.
    my $again = Leasehold::Keychain::Again->new;
    my $result;
    {
        local $self->{asking} = 1;
        $self->_send( { %{$line}, id => $request->{id} }, $arg{begun} );
        my $answer = $self->_wait_for( $request->{id}, $end );
        if ( !$answer->{ok} ) {
            $request->is_done;
            die Leasehold::Error->from_answer( $answer, resource => $line->{resource},
                $arg{about} ? $arg{about}->() : () );
        }
        $result = $arg{then} ? $arg{then}->($answer) : $answer;
        $request->is_done;
    }
    $self->poll;
    $again->is_not_needed;
    return $result;
}

# Sends a request whose answer nobody waits for.
sub notify {
    my ( $self, $line ) = @_;
    return if $self->{is_gone};
    return $self->_send( { %{$line}, id => undef } );
}

# Takes in what has come, and lets the manager act on it.
sub poll {
    my ($self) = @_;
    local $self->{asking} = 0;
    $self->_read;
    return $self->{on_idle}->();
}

# Waits until $is_true returns true, at most so many seconds.
sub wait_until {
    my ( $self, $is_true, $seconds ) = @_;
    my $end   = now() + $seconds;
    my $again = Leasehold::Keychain::Again->new;
    {
        local $self->{asking} = 1;
        while ( !$is_true->() && !$self->{is_gone} && now() < $end ) {
            $self->_select( $end - now() );
            $self->_read;
        }
    }
    $self->poll;
    $again->is_not_needed;
    return;
}

# Everything is released, and the process ends.
sub shut_down {
    my ( $self, $limit ) = @_;
    $self->ask( { op => 'shutdown' }, limit => $limit ) if !$self->{is_gone};
    return $self->_leave;
}

sub _wait_for {
    my ( $self, $id, $end ) = @_;
    my $answer;
    $self->poll;
    until ( $answer = delete $self->{answers}{$id} ) {
        $self->_throw_gone if $self->{is_gone};
        my $rest = defined $end ? $end - now() : $WAIT_MAX;
        Leasehold::Error::Unknown->throw( message => 'the keychain process does not answer' ) if $rest <= 0;
        $self->_select($rest);
        $self->poll;
    }
    return $answer;
}

sub _select {
    my ( $self, $seconds ) = @_;
    my $readable = q{};
    vec( $readable, fileno $self->{from}, 1 ) = 1;
    return select $readable, undef, undef, $seconds < $WAIT_MAX ? $seconds : $WAIT_MAX;
}

# No signal handler runs in the middle of this: one that asks something itself would read on in the same buffer, and JSON::PP
# and $1 have one state for all that use them. What it throws would lose the line that is being taken in.
sub _read {
    my ($self) = @_;
    my $mask = Leasehold::Process::Mask->block;
    until ( $self->{is_gone} ) {
        my $got = sysread $self->{from}, $self->{buffer}, 65_536, length $self->{buffer};
        next if !defined $got && $! == EINTR;
        last if !defined $got && ( $! == EAGAIN || $! == EWOULDBLOCK );
        if ( !$got ) {
            # The beginning of a line that it did not finish says nothing.
            $self->_leave;
            $self->{on_event}->( { event => 'gone' } );
            last;
        }
        while ( $self->{buffer} =~ s/\A([^\n]*)\n// ) {
            $self->_take("$1");
        }
    }
    return $mask->restore;
}

sub _take {
    my ( $self, $text ) = @_;
    my $line = $JSON->decode($text);
    if ( defined $line->{event} ) {
        $self->{on_event}->($line);
    }
    elsif ( defined $line->{id} && $self->{waiting}{ $line->{id} } ) {
        $self->{answers}{ $line->{id} } = $line;
    }
    return;
}

# No signal handler may send a line of its own in the middle of this one.
sub _send {
    my ( $self, $line, $begun ) = @_;
    my $mask = Leasehold::Process::Mask->block;
    $begun->() if $begun;
    $self->_throw_gone if $self->{is_gone};
    my $text = eval { $JSON->encode($line) };
    Leasehold::Error::Invalid->throw( message => "'data' can't be written as JSON: $@" ) if !defined $text;
    if ( $text =~ $NO_UNICODE ) {
        Leasehold::Error::Invalid->throw( message => 'a text has a character that is not Unicode, such as half of a surrogate pair' );
    }
    $text .= "\n";
    Leasehold::Error::Invalid->throw( message => "a request may have at most $LINE_LEN_MAX bytes" ) if length $text > $LINE_LEN_MAX;
    my $error = $self->_write_without_signal( \$text, now() + $ANSWER_LIMIT );
    if ( defined $error ) {
        # What is left of a line would spoil the next one.
        $self->_leave;
        $self->{on_event}->( { event => 'gone' } );
    }
    $mask->restore;
    return defined $error ? $self->_throw_gone($error) : 1;
}

# A signal that is blocked is kept though it is ignored, and would end the program when it is neither any more. To ignore it
# again throws away what was kept.
sub _write_without_signal {
    my ( $self, $text, $end ) = @_;
    local $SIG{PIPE} = 'IGNORE';
    my $error = $self->_write( $text, $end );
    $SIG{PIPE} = 'IGNORE';
    return $error;
}

sub _write {
    my ( $self, $text, $end ) = @_;
    while ( length ${$text} ) {
        my $sent = syswrite $self->{to}, ${$text};
        if ( defined $sent ) {
            substr ${$text}, 0, $sent, q{};
            next;
        }
        return "$!" if $! != EAGAIN && $! != EWOULDBLOCK && $! != EINTR;
        return 'it does not read' if now() >= $end;
        my $writable = q{};
        vec( $writable, fileno $self->{to}, 1 ) = 1;
        select undef, $writable, undef, $WAIT_MAX;
    }
    return;
}

sub _throw_gone {
    my ( $self, $why ) = @_;
    my $because = defined $why ? " ($why)" : q{};
    return Leasehold::Error::KeychainGone->throw( message => "the keychain process has ended$because" );
}

sub now { return clock_gettime(CLOCK_MONOTONIC) }

# The clock that goes on while the machine is suspended. The keychain counts on it too, so that its moments can be compared.
sub boottime { return clock_gettime($CLOCK_BOOTTIME) }

sub send_signal { return kill $SIGNAL => $$ }

# The kernel sends $SIGNAL to this process when the keychain says something, or ends.
sub _listen {
    my ($self) = @_;
    my $handler = $SIG{$SIGNAL};
    if ( !ref $handler || $handler != \&_on_signal ) {
        $HANDLER_BEFORE = $handler;
        $SIG{$SIGNAL} = \&_on_signal;
    }
    my $from = $self->{from};
    fcntl $self->{to}, F_SETFL, O_NONBLOCK | fcntl $self->{to}, F_GETFL, 0;
    fcntl $from, F_SETOWN, $$ + 0;
    fcntl $from, $CHOOSE_SIGNAL, POSIX::SIGURG() if defined $CHOOSE_SIGNAL;
    return fcntl $from, F_SETFL, O_NONBLOCK | O_ASYNC | fcntl $from, F_GETFL, 0;
}

# What a callback throws is thrown into the program when every keychain has been heard.
sub _on_signal {
    my @arg = @_;
    local ( $@, $! );
    my @thrown;
    for my $keychain ( grep { defined && $_->is_mine && !$_->{asking} } values %RUNNING ) {
        local $SIG{__DIE__};
        eval { $keychain->poll; 1 } or push @thrown, $@;
    }
    _call_before(@arg);
    die $thrown[0] if @thrown;
    return;
}

sub _call_before {
    my @arg    = @_;
    my $before = $HANDLER_BEFORE;
    return if !defined $before || $before eq q{} || $before eq 'DEFAULT' || $before eq 'IGNORE';
    no strict 'refs';
    return ref $before ? $before->(@arg) : &{ $before =~ m/::/ ? $before : "main::$before" }(@arg);
}

# No more lines, in either direction.
sub _leave {
    my ($self) = @_;
    return if $self->{is_gone};
    $self->{is_gone} = 1;
    close $_ for @{$self}{qw(to from)};
    return $self->_stop_listening;
}

sub _stop_listening {
    my ($self) = @_;
    delete $RUNNING{ refaddr $self };
    return if grep { defined && $_->is_mine } values %RUNNING;
    my $handler = $SIG{$SIGNAL};
    if ( ref $handler && $handler == \&_on_signal ) {
        $SIG{$SIGNAL} = defined $HANDLER_BEFORE && $HANDLER_BEFORE ne q{} ? $HANDLER_BEFORE : 'DEFAULT';
    }
    return;
}

sub DESTROY {
    my ($self) = @_;
    local ( $@, $! );
    if   ( $self->is_mine ) { $self->_leave }
    else                    { delete $RUNNING{ refaddr $self } }
    return;
}

package Leasehold::Keychain::Request;

# A request on its way. If it is left by an exception, its answer is thrown away and what it did is undone.

sub new {
    my ( $class, $keychain, $undo ) = @_;
    my $self = bless { keychain => $keychain, id => $keychain->{next_id}++, undo => $undo }, $class;
    $keychain->{waiting}{ $self->{id} } = 1;
    return $self;
}

sub is_done {
    my ($self) = @_;
    delete $self->{undo};
    return;
}

sub DESTROY {
    my ($self) = @_;
    my $keychain = $self->{keychain} or return;
    delete $keychain->{waiting}{ $self->{id} };
    delete $keychain->{answers}{ $self->{id} };
    return if !$self->{undo} || $keychain->{is_gone} || !$keychain->is_mine;
    local ( $@, $! );
    local $SIG{__DIE__};
    eval { $keychain->notify( $self->{undo} ) };
    return;
}

package Leasehold::Keychain::Again;

# Has this process look at its keychains once more, when this object's scope is left.

sub new {
    my ($class) = @_;
    return bless { is_needed => 1 }, $class;
}

sub is_not_needed {
    my ($self) = @_;
    $self->{is_needed} = 0;
    return;
}

sub DESTROY {
    my ($self) = @_;
    local $!;
    Leasehold::Keychain::send_signal() if $self->{is_needed} && %RUNNING;
    return;
}

1;

__END__

=encoding utf8

=head1 NAME

Leasehold::Keychain - the process that holds and renews claims, and the pipe to it

=head1 DESCRIPTION

For this library only. One C<leasehold keychain> process makes all requests of a L<Leasehold::LockManager>; both sides
write a JSON object a line. docs/keychain.md of Leasehold describes the lines.

The kernel sends C<SIGURG>, which is ignored by default, when the keychain writes something or ends. A handler that your
program had before is called afterwards. If your program replaces the handler, or blocks the signal, a loss is noticed at
the next call of this library only.

=head1 METHODS

=head2 start

Starts the process and waits for its first answer.

=head2 ask, notify

Send a request, and wait for its answer or don't.

=head2 poll, wait_until

Take in what the keychain has said.

=head2 shut_down

Has the keychain release everything and end.

=head2 pid, is_gone, is_mine

The number of the process, whether it has ended, and whether this process (not one that forked it) started it.

=head2 send_signal

Sends this process the signal that the kernel sends when a keychain has said something.

=head2 now

Seconds on the clock that limits go by.

=head2 boottime

Seconds on the clock that claims go by (CLOCK_BOOTTIME): it goes on while the machine is suspended.

=head2 answer_limit

After how many seconds a keychain that does not answer counts as stuck.

=cut
