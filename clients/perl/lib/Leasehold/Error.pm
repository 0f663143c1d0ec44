package Leasehold::Error;

# What can go wrong, each in a class of its own.
#
# In:    answers of the keychain, broken pipes, bad parameters. Out: exceptions with fields.
# Never: calls an outcome failed that is only unknown.

use strict;
use warnings;

use overload
    q{""}    => sub { $_[0]->as_string },
    bool     => sub { 1 },
    fallback => 1;

our $VERSION = '0.2.0';

# The keychain's word for a failure, and the class that it becomes.
my %CLASS_OF = (
    'invalid'         => 'Leasehold::Error::Invalid',
    'timeout'         => 'Leasehold::Error::NotAcquired',
    'unreachable'     => 'Leasehold::Error::Unreachable',
    'refused'         => 'Leasehold::Error::Refused',
    'already-claimed' => 'Leasehold::Error::AlreadyClaimed',
    'deadlock'        => 'Leasehold::Error::Deadlock',
    'ended'           => 'Leasehold::Error::Ended',
    'lost'            => 'Leasehold::Error::Lost',
    'unknown'         => 'Leasehold::Error::Unknown',
    'aborted'         => 'Leasehold::Error::Aborted',
    'closed'          => 'Leasehold::Error::KeychainGone',
);

@Leasehold::Error::Invalid::ISA        = ('Leasehold::Error');
@Leasehold::Error::NotAcquired::ISA    = ('Leasehold::Error');
@Leasehold::Error::Unreachable::ISA    = ('Leasehold::Error');
@Leasehold::Error::Refused::ISA        = ('Leasehold::Error');
@Leasehold::Error::AlreadyClaimed::ISA = ('Leasehold::Error::Refused');
@Leasehold::Error::Deadlock::ISA       = ('Leasehold::Error::Refused');
@Leasehold::Error::Ended::ISA          = ('Leasehold::Error');
@Leasehold::Error::Lost::ISA           = ('Leasehold::Error');
@Leasehold::Error::Unknown::ISA        = ('Leasehold::Error');
@Leasehold::Error::Aborted::ISA        = ('Leasehold::Error');
@Leasehold::Error::KeychainGone::ISA   = ('Leasehold::Error');
@Leasehold::Error::Foreign::ISA        = ('Leasehold::Error');

sub new {
    my ( $class, %field ) = @_;
    my ( $file, $line ) = _calling_place();
    return bless { file => $file, line => $line, %field }, $class;
}

sub throw {
    my ( $class, %field ) = @_;
    die $class->new(%field);
}

# The exception for an answer of the keychain that is not a success.
sub from_answer {
    my ( $class, $answer, %field ) = @_;
    my $kind    = defined $answer->{error}  ? $answer->{error}  : 'unknown';
    my $message = defined $answer->{detail} ? $answer->{detail} : "the keychain answers '$kind'";
    my $status  = $kind eq 'refused' && $message =~ m/[(](\d{3})[)]/ ? $1 : undef;
    return ( $CLASS_OF{$kind} || $class )->new( message => $message, status => $status, cycle => $answer->{cycle}, %field );
}

sub message  { my ($self) = @_; return $self->{message} }
sub resource { my ($self) = @_; return $self->{resource} }
sub claim    { my ($self) = @_; return $self->{claim} }
sub token    { my ($self) = @_; return $self->{token} }
sub reason   { my ($self) = @_; return $self->{reason} }
sub status   { my ($self) = @_; return $self->{status} }
sub holder   { my ($self) = @_; return $self->{holder} }
sub position { my ($self) = @_; return $self->{position} }
sub cycle    { my ($self) = @_; return $self->{cycle} }
sub file     { my ($self) = @_; return $self->{file} }
sub line     { my ($self) = @_; return $self->{line} }

sub as_string {
    my ($self) = @_;
    return sprintf "%s: %s at %s line %d.\n", ref $self, $self->{message}, $self->{file}, $self->{line};
}

# The line of the program, not of this library, that made the call.
sub _calling_place {
    my $depth = 0;
    my ( $package, $file, $line ) = caller $depth;
    while ( defined $package && $package =~ m/\ALeasehold(?:::|\z)/ ) {
        my @next = caller ++$depth;
        last if !@next;
        ( $package, $file, $line ) = @next;
    }
    return ( $file, $line );
}

1;

__END__

=encoding utf8

=head1 NAME

Leasehold::Error - what can go wrong with a claim, each in a class of its own

=head1 SYNOPSIS

    use Scalar::Util qw(blessed);

    my $claim = eval { $manager->claim(resource => 'db/main', timeout => 10) };
    if (my $error = $@) {
        die $error if !blessed $error || !$error->isa('Leasehold::Error::NotAcquired');
        my $holder = $error->holder;
        print 'somebody else has it: ', $holder ? $holder->{claim} : 'unknown', "\n";
    }

=head1 DESCRIPTION

Every failure of the server, of the way to it, or of the keychain process is thrown as an object of one of these
classes. All of them are C<Leasehold::Error>. As a string, an object is its class, its message, and the line of
your program that made the call.

=head2 Classes

=over

=item C<Leasehold::Error::NotAcquired>

The resource was not free within the timeout. The claim has left the queue. C<holder> and C<position> tell what the
server last said.

=item C<Leasehold::Error::Lost>

The claim no longer holds its resource for certain. C<reason> is one of C<not-renewed>, C<ended> (the server says that
it is over, for example because it was revoked), C<max-hold>, C<aborted> and C<keychain-gone>.

=item C<Leasehold::Error::Refused>

The server refuses; C<status> has the HTTP status. C<Leasehold::Error::AlreadyClaimed> is a subclass: this manager
already has a claim on the resource. So is C<Leasehold::Error::Deadlock>: the claim would wait for ever, and has left the queue; C<cycle> tells why.

=item C<Leasehold::Error::Unreachable>

No server answers.

=item C<Leasehold::Error::Unknown>

The request was sent and nothing came back: it may have happened.

=item C<Leasehold::Error::Ended>

The claim was released before.

=item C<Leasehold::Error::Aborted>

A signal to the keychain ended the claim before it was acquired.

=item C<Leasehold::Error::KeychainGone>

The keychain process can't be started or has ended, or the manager is closed.

=item C<Leasehold::Error::Foreign>

The claim belongs to another process, of which this one is a forked child, or to another thread.

=item C<Leasehold::Error::Invalid>

A parameter makes no sense.

=back

=head1 METHODS

=head2 message

What happened, as a sentence.

=head2 resource, claim, token

The resource, the claim's id on the server and its fencing token, where they are known.

=head2 reason

Why a claim is lost.

=head2 status

The HTTP status of a refusal.

=head2 holder, position

For C<NotAcquired>: the claim that holds the resource, a hash with C<claim>, C<owner>, C<token> and C<user_data>, and
the place in the queue that was reached. Both are undefined if the server did not tell; it names the holder to claims
that wait for half a minute.

=head2 cycle

For C<Deadlock>: a reference to an array of the claims in each other's way, the refused one first, as far as you may read them: C<claim>,
C<owner>, C<session>, C<resource>, and as C<link> whether it C<wants>, C<holds> or C<reserves> the resource.

=head2 file, line

Where your program made the call.

=head2 as_string

The text that the object becomes as a string.

=head2 new, throw, from_answer

For this library: make an exception, throw one, and turn an answer of the keychain into one.

=head1 SEE ALSO

L<Leasehold::LockManager>, L<Leasehold::Claim>

=cut
